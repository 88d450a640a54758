/*
 * A libnvidia-ml.so.1 that needs no GPU: it answers the NVML C ABI from a text file.
 *
 * NVML_STUB_STATE names the file. Its lines are `key=value`, `gpu.N.key=value` and
 * `gpu.N.mig.M.key=value`; `#` starts a comment. It is read again whenever its inode, size or
 * mtime changes, so a running process can be given new values, and can lose its GPU, from outside.
 * Replace the file by a rename: a reader never sees half of it. With no file the driver counts as
 * not loaded. An absent key is a query this device does not support (NVML_ERROR_NOT_SUPPORTED).
 *
 * NVML_STUB_LOG names a file that gets one line, `pid time_us symbol gpu code`, for each
 * initialisation and shutdown, each GPM sample allocated and freed and, with `log_calls=1`, for
 * each call. `gpu` is -1 for a call without a device.
 *
 * Return codes, value types and ring sizes are those an H200 with driver 580.159.04 gave.
 *
 * Compile with -DWITHOUT_nvmlSomething and that symbol cannot be found, as in an older driver.
 *
 * Global keys:
 *   count driver_version nvml_version cuda_version init_error log_calls
 *   clock_us                       stops the clock at this many microseconds since the epoch; the
 *                                  values last read hold until then
 *   error.SYMBOL=CODE              makes the call return CODE (also gpu.N.error.SYMBOL)
 *   delay_us.SYMBOL=MICROSECONDS   makes the call take that long (also gpu.N.delay_us.SYMBOL)
 * Keys of a gpu: tests/nvml_stub.py lists them; those with a rule of their own are
 *   lost=1                         every call answers NVML_ERROR_GPU_IS_LOST
 *   wave=1, wave_period_s=10       the values swing between their tenth and their full size
 *   processes=PID:BYTES,self:BYTES,PID:na      also graphics_processes and mps_processes
 *   process_utilization=PID:PERCENT,self:PERCENT
 *   energy_mj power_violation_ns thermal_violation_ns sync_boost_violation_ns
 *   power_brake_violation_ns pcie_tx_bytes pcie_rx_bytes
 *                                  where a counter starts; it then grows with time by power_mw,
 *                                  clock_event_reasons, pcie_tx_kib_s and pcie_rx_kib_s
 *   field_error.ID=CODE            what one field value answers
 *   gpm_supported=1, gpm.ID=VALUE  a GPM metric at full load; some have a default made from
 *                                  utilization
 *   mig=M                          M slices; mig=0 is a device that could be sliced
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- what nvml.h declares, as far as it is needed ------------------------------------------ */

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
} nvmlReturn_t;

typedef unsigned long long u64;
typedef struct device *nvmlDevice_t;
typedef struct gpm_sample *nvmlGpmSample_t;

typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { u64 total, free, used; } nvmlMemory_t, nvmlBAR1Memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned version, sensorType; int temperature; } nvmlTemperature_t;
typedef struct { unsigned version; int marginTemperature; } nvmlMarginTemperature_t;
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    unsigned pid;
    u64 usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef union {
    double dVal;
    unsigned uiVal;
    u64 ullVal;
} nvmlValue_t;
typedef enum {
    VALUE_DOUBLE = 0,
    VALUE_UNSIGNED_INT = 1,
    VALUE_UNSIGNED_LONG_LONG = 3,
} nvmlValueType_t;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    nvmlValueType_t valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct { u64 timeStamp; nvmlValue_t sampleValue; } nvmlSample_t;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount,
        sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    u64 memorySizeMB;
} nvmlDeviceAttributes_t;
typedef struct { unsigned version, isSupportedDevice; } nvmlGpmSupport_t;
typedef struct { const char *shortName, *longName, *unit; } nvmlGpmMetricInfo_t;
typedef struct {
    unsigned metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    nvmlGpmMetricInfo_t metricInfo;
} nvmlGpmMetric_t;
typedef struct {
    unsigned version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[477];
} nvmlGpmMetricsGet_t;

#define MEMORY_V2 0x02000028u
#define TEMPERATURE_V1 0x0100000Cu
#define MARGIN_TEMPERATURE_V1 0x01000008u
#define NO_INSTANCE 0xFFFFFFFFu

_Static_assert(sizeof(nvmlMemory_v2_t) == (MEMORY_V2 & 0xFFFFFF), "memory v2");
_Static_assert(sizeof(nvmlTemperature_t) == (TEMPERATURE_V1 & 0xFFFFFF), "temperature v1");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "PCI info v3");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "process info v2 and v3");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "field value");
_Static_assert(sizeof(nvmlSample_t) == 16, "sample");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "MIG attributes");
_Static_assert(sizeof(nvmlGpmMetric_t) == 40, "GPM metric");
_Static_assert(sizeof(nvmlGpmMetricsGet_t) == 19104, "GPM metrics get");

/* ---- EXPORT(name): visible, unless the build says -DWITHOUT_name ---------------------------- */

#define SHIFT_1 unused,
#define SECOND(ignored, second, ...) second
#define SECOND_OF(...) SECOND(__VA_ARGS__)
#define CHOOSE(flag) SECOND_OF(SHIFT_##flag "hidden", "default", unused)
#define VISIBILITY(flag) CHOOSE(flag)
#define EXPORT(name) __attribute__((visibility(VISIBILITY(WITHOUT_##name)), used))
#define API(name, ...) EXPORT(name) nvmlReturn_t name(__VA_ARGS__)

/* ---- the state file -------------------------------------------------------------------------- */

enum { MAX_GPUS = 16, MAX_SLICES = 7, MAX_KEYS = 256 };

struct entry { const char *key, *value; };
struct table { int size; struct entry entries[MAX_KEYS]; };
struct state { char *text; struct table global, gpus[MAX_GPUS]; };
struct counters {
    double energy_mj, power_ns, thermal_ns, sync_ns, brake_ns, tx_bytes, rx_bytes;
};

struct device { int gpu, slice; }; /* slice is -1 for the whole GPU */
struct gpm_sample { u64 taken_us; int gpu, taken; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised;                /* inits not yet shut down, in this process */
static struct state states[2], *state; /* state is NULL while there is no file */
static char state_path[4096];
static struct stat state_stat;
static struct counters counters[MAX_GPUS]; /* what each counter grew by since the library began */
static u64 counted_us;                     /* up to when */
static struct device devices[MAX_GPUS][1 + MAX_SLICES];

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

/* A driver handle is not inherited: the child has to initialise for itself. */
static void in_child(void)
{
    initialised = 0;
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void)
{
    for (int gpu = 0; gpu < MAX_GPUS; gpu++)
        for (int slice = -1; slice < MAX_SLICES; slice++)
            devices[gpu][slice + 1] = (struct device){gpu, slice};
    pthread_atfork(before_fork, after_fork, in_child);
}

static const char *find(const struct table *table, const char *key)
{
    for (int i = 0; i < table->size; i++)
        if (!strcmp(table->entries[i].key, key))
            return table->entries[i].value;
    return NULL;
}

static double number(const struct table *table, const char *key, double otherwise)
{
    const char *value = find(table, key);
    return value && *value ? strtod(value, NULL) : otherwise;
}

/* The value of prefix + suffix, for keys such as error.SYMBOL. */
static double number_of(const struct table *table, const char *prefix, const char *suffix,
                        double otherwise)
{
    char key[160];
    snprintf(key, sizeof key, "%s%s", prefix, suffix);
    return number(table, key, otherwise);
}

static u64 real_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static u64 now_us(void)
{
    const char *stopped = state ? find(&state->global, "clock_us") : NULL;
    return stopped ? strtoull(stopped, NULL, 10) : real_us();
}

/* ---- values that move ------------------------------------------------------------------------ */

static double angular_speed(const struct table *gpu)
{
    return 2 * M_PI / number(gpu, "wave_period_s", 10);
}

/* The share of its full size that a value has at a time: 1, or with wave=1 from 0.1 to 1. */
static double share(int gpu, double time_us)
{
    const struct table *table = &state->gpus[gpu];
    if (!number(table, "wave", 0))
        return 1;
    return 0.55 + 0.45 * sin(angular_speed(table) * time_us / 1e6 + gpu);
}

static double mean_share(int gpu, double from_us, double to_us)
{
    const struct table *table = &state->gpus[gpu];
    if (!number(table, "wave", 0) || to_us <= from_us)
        return share(gpu, to_us);
    double speed = angular_speed(table), from = from_us / 1e6, to = to_us / 1e6;
    return 0.55 - 0.45 * (cos(speed * to + gpu) - cos(speed * from + gpu)) / (speed * (to - from));
}

static double power_mw(int gpu, double share_now)
{
    double full = number(&state->gpus[gpu], "power_mw", 0);
    double idle = fmin(full, number(&state->gpus[gpu], "power_idle_mw", full * 0.12));
    return idle + (full - idle) * share_now;
}

/* Let the counters of every GPU run until a time, with the state that held until then. */
static void count_until(u64 until_us)
{
    if (state && until_us > counted_us) {
        double seconds = (until_us - counted_us) / 1e6;
        for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
            const struct table *table = &state->gpus[gpu];
            if (!table->size)
                continue;
            struct counters *sum = &counters[gpu];
            double mean = mean_share(gpu, counted_us, until_us);
            unsigned reasons = number(table, "clock_event_reasons", 0);
            sum->energy_mj += power_mw(gpu, mean) * seconds;
            sum->power_ns += reasons & 0x04 ? seconds * 1e9 : 0;
            sum->thermal_ns += reasons & 0x60 ? seconds * 1e9 : 0;
            sum->sync_ns += reasons & 0x10 ? seconds * 1e9 : 0;
            sum->brake_ns += reasons & 0x80 ? seconds * 1e9 : 0;
            sum->tx_bytes += number(table, "pcie_tx_kib_s", 0) * 1024 * mean * seconds;
            sum->rx_bytes += number(table, "pcie_rx_kib_s", 0) * 1024 * mean * seconds;
        }
    }
    counted_us = until_us;
}

/* ---- reading the state file ------------------------------------------------------------------ */

static void add(struct state *into, char *line)
{
    char *value = strchr(line, '=');
    if (*line == '#' || !value)
        return;
    *value++ = 0;
    struct table *table = &into->global;
    if (!strncmp(line, "gpu.", 4)) {
        char *end;
        long gpu = strtol(line + 4, &end, 10);
        if (*end != '.' || gpu < 0 || gpu >= MAX_GPUS)
            return;
        table = &into->gpus[gpu];
        line = end + 1;
    }
    if (table->size < MAX_KEYS)
        table->entries[table->size++] = (struct entry){line, value};
}

static char *contents(const char *path, struct stat *stat)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    char *text = NULL;
    if (file >= 0 && !fstat(file, stat) && (text = malloc(stat->st_size + 1))) {
        ssize_t size = read(file, text, stat->st_size);
        text[size > 0 ? size : 0] = 0;
    }
    if (file >= 0)
        close(file);
    return text;
}

static void forget(void)
{
    state = NULL;
    *state_path = 0;
}

/* Take up the state file if it is another one than at the last call. */
static void refresh(void)
{
    const char *path = getenv("NVML_STUB_STATE");
    struct stat seen;
    if (!path || strlen(path) >= sizeof state_path || stat(path, &seen)) {
        forget();
        return;
    }
    int same_path = !strcmp(path, state_path);
    if (state && same_path && seen.st_ino == state_stat.st_ino &&
        seen.st_size == state_stat.st_size && seen.st_mtim.tv_sec == state_stat.st_mtim.tv_sec &&
        seen.st_mtim.tv_nsec == state_stat.st_mtim.tv_nsec)
        return;
    char *text = contents(path, &seen);
    if (!text) {
        forget();
        return;
    }
    struct state *next = state == &states[0] ? &states[1] : &states[0];
    free(next->text);
    memset(next, 0, sizeof *next);
    next->text = text;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")))
        add(next, line);

    if (state && same_path) { /* the old values held until the file was written */
        const char *stopped = find(&next->global, "clock_us");
        u64 now = real_us();
        u64 written = (u64)seen.st_mtim.tv_sec * 1000000 + seen.st_mtim.tv_nsec / 1000;
        u64 changed = stopped ? strtoull(stopped, NULL, 10) : written < now ? written : now;
        if (changed > counted_us)
            count_until(changed);
        state = next;
    } else {
        memset(counters, 0, sizeof counters);
        state = next;
        counted_us = now_us();
    }
    strcpy(state_path, path);
    state_stat = seen;
}

/* ---- the way into each call ------------------------------------------------------------------ */

static void record(const char *symbol, int gpu, nvmlReturn_t code)
{
    const char *path = getenv("NVML_STUB_LOG");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (file < 0)
        return;
    char line[200];
    int size = snprintf(line, sizeof line, "%d %llu %s %d %d\n", (int)getpid(), real_us(), symbol,
                        gpu, (int)code);
    ssize_t written = write(file, line, size);
    (void)written;
    close(file);
}

static void pause_us(double microseconds)
{
    struct timespec left = {(time_t)(microseconds / 1e6), (long)fmod(microseconds, 1e6) * 1000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

static int count(void)
{
    int count = number(&state->global, "count", 0);
    return count < MAX_GPUS ? count : MAX_GPUS;
}

static int slices(int gpu)
{
    int count = number(&state->gpus[gpu], "mig", 0);
    return count < MAX_SLICES ? count : MAX_SLICES;
}

/* The GPU that a handle means, -1 for a handle that was never given out. */
static int gpu_of(const struct device *device)
{
    uintptr_t offset = (uintptr_t)device - (uintptr_t)devices;
    if (!device || offset >= sizeof devices || offset % sizeof *device)
        return -1;
    return device->gpu;
}

/* Why a GPU refuses a call, or NVML_SUCCESS. */
static nvmlReturn_t refusal(int gpu, const char *symbol)
{
    if (gpu < 0 || gpu >= count())
        return NVML_ERROR_INVALID_ARGUMENT;
    if (number(&state->gpus[gpu], "lost", 0))
        return NVML_ERROR_GPU_IS_LOST;
    return (nvmlReturn_t)number_of(&state->gpus[gpu], "error.", symbol, NVML_SUCCESS);
}

enum { NO_DEVICE = -2 };

/* Take the time the call takes; then say why it fails, or NVML_SUCCESS. Needs the lock. */
static nvmlReturn_t enter(const char *symbol, int gpu)
{
    nvmlReturn_t code = NVML_SUCCESS;
    refresh();
    if (state && initialised) {
        double blocks = strcmp(symbol, "nvmlDeviceGetPcieThroughput") ? 0 : 20000;
        double delay = number_of(&state->global, "delay_us.", symbol, blocks);
        if (gpu >= 0)
            delay = number_of(&state->gpus[gpu], "delay_us.", symbol, delay);
        if (delay > 0) {
            pthread_mutex_unlock(&lock);
            pause_us(delay);
            pthread_mutex_lock(&lock);
            refresh();
        }
    }
    if (!initialised && strcmp(symbol, "nvmlSystemGetNVMLVersion")) /* it may come first */
        code = NVML_ERROR_UNINITIALIZED;
    else if (!state)
        code = NVML_ERROR_DRIVER_NOT_LOADED;
    if (!code)
        code = (nvmlReturn_t)number_of(&state->global, "error.", symbol, NVML_SUCCESS);
    if (!code && gpu != NO_DEVICE)
        code = refusal(gpu, symbol);
    if (state && number(&state->global, "log_calls", 0))
        record(symbol, gpu < 0 ? -1 : gpu, code);
    return code;
}

static void leave(int *held)
{
    (void)held;
    pthread_mutex_unlock(&lock);
}

#define HOLD_LOCK \
    int held __attribute__((cleanup(leave), unused)) = pthread_mutex_lock(&lock)
#define ENTER_WITH(gpu, refused_otherwise) \
    HOLD_LOCK; \
    nvmlReturn_t refused = enter(__func__, gpu); \
    if (refused || (refused_otherwise)) \
        return refused ? refused : NVML_ERROR_INVALID_ARGUMENT
#define ENTER(...) ENTER_WITH(NO_DEVICE, __VA_ARGS__)
#define ENTER_DEVICE(device, ...) ENTER_WITH(gpu_of(device), __VA_ARGS__)

/* ---- reading one device ---------------------------------------------------------------------- */

/* The text under a device's key, NULL if the device does not have it. */
static const char *key(const struct device *device, const char *name)
{
    if (device->slice < 0)
        return find(&state->gpus[device->gpu], name);
    char own[96];
    snprintf(own, sizeof own, "mig.%d.%s", device->slice, name);
    return find(&state->gpus[device->gpu], own);
}

static nvmlReturn_t whole(const struct device *device, const char *name, u64 *value)
{
    const char *text = key(device, name);
    if (!text)
        return NVML_ERROR_NOT_SUPPORTED;
    *value = strtoull(text, NULL, 0);
    return NVML_SUCCESS;
}

static nvmlReturn_t small(const struct device *device, const char *name, unsigned *value)
{
    u64 wide = 0;
    nvmlReturn_t code = whole(device, name, &wide);
    if (!code)
        *value = (unsigned)wide;
    return code;
}

static nvmlReturn_t text(const char *value, char *into, unsigned length)
{
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(value) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(into, value);
    return NVML_SUCCESS;
}

/* A percentage, which a device with MIG slices does not measure. */
static nvmlReturn_t percent(const struct device *device, const char *name, double time_us,
                            unsigned *value)
{
    if (device->slice >= 0 || slices(device->gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t code = small(device, name, value);
    if (!code)
        *value = (unsigned)lround(*value * share(device->gpu, time_us));
    return code;
}

static nvmlReturn_t watts(const struct device *device, double time_us, unsigned *value)
{
    nvmlReturn_t code = small(device, "power_mw", value);
    if (!code && device->slice < 0)
        *value = (unsigned)lround(power_mw(device->gpu, share(device->gpu, time_us)));
    return code;
}

static nvmlReturn_t celsius(const struct device *device, const char *name, unsigned *value)
{
    nvmlReturn_t code = small(device, name, value);
    double below = 15 * (1 - share(device->gpu, now_us()));
    if (!code && *value > below)
        *value -= (unsigned)lround(below);
    return code;
}

static nvmlReturn_t memory(const struct device *device, nvmlMemory_v2_t *info)
{
    info->used = info->reserved = 0;
    nvmlReturn_t code = whole(device, "memory_total", &info->total);
    if (code && device->slice >= 0 && slices(device->gpu)) {
        code = whole(&devices[device->gpu][0], "memory_total", &info->total);
        info->total /= slices(device->gpu);
    }
    if (code)
        return code;
    whole(device, "memory_used", &info->used);
    whole(device, "memory_reserved", &info->reserved);
    info->used *= 0.5 + 0.5 * share(device->gpu, now_us());
    u64 taken = info->used + info->reserved;
    info->free = info->total > taken ? info->total - taken : 0;
    return NVML_SUCCESS;
}

static void uuid_of(const struct device *device, char *into, size_t size)
{
    const char *given = key(device, "uuid");
    if (given)
        snprintf(into, size, "%s", given);
    else if (device->slice < 0)
        snprintf(into, size, "GPU-%08x-0000-4000-8000-000000000000", 0x5afe0000u + device->gpu);
    else
        snprintf(into, size, "MIG-%08x-%04x-5000-8000-000000000000", 0x5afe0000u + device->gpu,
                 device->slice);
}

static int bus_parts(const char *id, unsigned parts[3])
{
    return id && sscanf(id, "%x:%x:%x", &parts[0], &parts[1], &parts[2]) == 3;
}

static void bus_of(int gpu, unsigned parts[3])
{
    if (bus_parts(find(&state->gpus[gpu], "pci_bus_id"), parts))
        return;
    parts[0] = parts[2] = 0;
    parts[1] = 0x10 + gpu;
}

/* ---- library and system ---------------------------------------------------------------------- */

static nvmlReturn_t init(const char *symbol)
{
    HOLD_LOCK;
    refresh();
    nvmlReturn_t code = state ? (nvmlReturn_t)number(&state->global, "init_error", NVML_SUCCESS)
                              : NVML_ERROR_DRIVER_NOT_LOADED;
    if (!code)
        initialised++;
    record(symbol, -1, code);
    return code;
}

API(nvmlInit, void) { return init(__func__); }
API(nvmlInit_v2, void) { return init(__func__); }
API(nvmlInitWithFlags, unsigned flags)
{
    (void)flags;
    return init(__func__);
}

API(nvmlShutdown, void)
{
    HOLD_LOCK;
    nvmlReturn_t code = initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (initialised)
        initialised--;
    record(__func__, -1, code);
    return code;
}

EXPORT(nvmlErrorString) const char *nvmlErrorString(nvmlReturn_t code)
{
    static const char *const names[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request.",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory",
        "No data", "The requested vgpu operation is not available on target device, because ECC is "
        "enabled", "Ran out of critical resources, other than memory", "Frequency not supported",
        "Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state",
        "Reset type not supported",
    };
    return (unsigned)code < sizeof names / sizeof *names ? names[code] : "Unknown Error";
}

#define SYSTEM_TEXT(name, from) \
    API(name, char *into, unsigned length) \
    { \
        ENTER(!into); \
        return text(find(&state->global, from), into, length); \
    }
SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver_version")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "nvml_version")

#define SYSTEM_CUDA_VERSION(name) \
    API(name, int *version) \
    { \
        ENTER(!version); \
        *version = number(&state->global, "cuda_version", 0); \
        return *version ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND; \
    }
SYSTEM_CUDA_VERSION(nvmlSystemGetCudaDriverVersion)
SYSTEM_CUDA_VERSION(nvmlSystemGetCudaDriverVersion_v2)

/* ---- which device ---------------------------------------------------------------------------- */

static nvmlReturn_t give(int gpu, int slice, const char *symbol, nvmlDevice_t *device)
{
    nvmlReturn_t code = refusal(gpu, symbol);
    if (!code)
        *device = &devices[gpu][slice + 1];
    return code;
}

API(nvmlDeviceGetCount_v2, unsigned *number_of_devices)
{
    ENTER(!number_of_devices);
    *number_of_devices = count();
    return NVML_SUCCESS;
}

API(nvmlDeviceGetHandleByIndex_v2, unsigned index, nvmlDevice_t *device)
{
    ENTER(!device || index >= (unsigned)count());
    return give(index, -1, __func__, device);
}

API(nvmlDeviceGetHandleByUUID, const char *uuid, nvmlDevice_t *device)
{
    ENTER(!uuid || !device);
    for (int gpu = 0; gpu < count(); gpu++)
        for (int slice = -1; slice < slices(gpu); slice++) {
            char own[96];
            uuid_of(&devices[gpu][slice + 1], own, sizeof own);
            if (!strcmp(own, uuid))
                return give(gpu, slice, __func__, device);
        }
    return NVML_ERROR_NOT_FOUND;
}

API(nvmlDeviceGetHandleByPciBusId_v2, const char *id, nvmlDevice_t *device)
{
    unsigned wanted[3], own[3];
    ENTER(!device || !bus_parts(id, wanted));
    for (int gpu = 0; gpu < count(); gpu++) {
        bus_of(gpu, own);
        if (!memcmp(own, wanted, sizeof own))
            return give(gpu, -1, __func__, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

API(nvmlDeviceGetName, nvmlDevice_t device, char *into, unsigned length)
{
    ENTER_DEVICE(device, !into);
    const char *own = key(device, "name");
    if (own || device->slice < 0)
        return text(own, into, length);
    const char *parent = find(&state->gpus[device->gpu], "name");
    char name[160];
    snprintf(name, sizeof name, "%.100s MIG 1g.18gb", parent ? parent : "GPU");
    return text(name, into, length);
}

API(nvmlDeviceGetUUID, nvmlDevice_t device, char *into, unsigned length)
{
    ENTER_DEVICE(device, !into);
    char uuid[96];
    uuid_of(device, uuid, sizeof uuid);
    return text(uuid, into, length);
}

API(nvmlDeviceGetIndex, nvmlDevice_t device, unsigned *index)
{
    ENTER_DEVICE(device, !index);
    *index = device->slice < 0 ? device->gpu : device->slice;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetMinorNumber, nvmlDevice_t device, unsigned *minor)
{
    ENTER_DEVICE(device, !minor);
    *minor = device->gpu;
    return device->slice < 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API(nvmlDeviceGetPciInfo_v3, nvmlDevice_t device, nvmlPciInfo_t *info)
{
    ENTER_DEVICE(device, !info);
    unsigned parts[3];
    bus_of(device->gpu, parts);
    memset(info, 0, sizeof *info);
    info->domain = parts[0];
    info->bus = parts[1];
    info->device = parts[2];
    small(device, "pci_device_id", &info->pciDeviceId);
    small(device, "pci_subsystem_id", &info->pciSubSystemId);
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", parts[0], parts[1], parts[2]);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", parts[0] & 0xFFFF,
             parts[1] & 0xFF, parts[2] & 0xFF);
    return NVML_SUCCESS;
}

API(nvmlDeviceGetNvLinkVersion, nvmlDevice_t device, unsigned link, unsigned *version)
{
    ENTER_DEVICE(device, !version || link > 17);
    return NVML_ERROR_NOT_SUPPORTED; /* as a GPU without NVLink answers */
}

API(nvmlDeviceGetCudaComputeCapability, nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE(device, !major || !minor);
    const char *value = find(&state->gpus[device->gpu], "compute_capability");
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? NVML_SUCCESS
                                                                : NVML_ERROR_NOT_SUPPORTED;
}

/* ---- one number under one key ---------------------------------------------------------------- */

#define NUMBER(name, from) \
    API(name, nvmlDevice_t device, unsigned *value) \
    { \
        ENTER_DEVICE(device, !value); \
        return small(device, from, value); \
    }
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetPerformanceState, "pstate")
NUMBER(nvmlDeviceGetPowerState, "pstate")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_limit_mw")
NUMBER(nvmlDeviceGetNumGpuCores, "cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, "memory_bus_width")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetFanSpeed, "fan_speed")

#define WIDE_NUMBER(name, from) \
    API(name, nvmlDevice_t device, u64 *value) \
    { \
        ENTER_DEVICE(device, !value); \
        return whole(device, from, value); \
    }
WIDE_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, "clock_event_reasons")
WIDE_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, "clock_event_reasons")
WIDE_NUMBER(nvmlDeviceGetSupportedClocksEventReasons, "supported_clock_event_reasons")

#define CLOCK(name, prefix) \
    API(name, nvmlDevice_t device, unsigned type, unsigned *mhz) \
    { \
        static const char *const keys[] = {prefix "graphics_clock_mhz", prefix "sm_clock_mhz", \
                                           prefix "memory_clock_mhz", prefix "video_clock_mhz"}; \
        ENTER_DEVICE(device, !mhz || type > 3); \
        return small(device, keys[type], mhz); \
    }
CLOCK(nvmlDeviceGetClockInfo, "")
CLOCK(nvmlDeviceGetMaxClockInfo, "max_")

#define CODEC(name, from) \
    API(name, nvmlDevice_t device, unsigned *value, unsigned *period_us) \
    { \
        ENTER_DEVICE(device, !value || !period_us); \
        *period_us = 100000; \
        return percent(device, from, now_us(), value); \
    }
CODEC(nvmlDeviceGetEncoderUtilization, "encoder")
CODEC(nvmlDeviceGetDecoderUtilization, "decoder")

/* ---- the measurements ------------------------------------------------------------------------ */

API(nvmlDeviceGetUtilizationRates, nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ENTER_DEVICE(device, !rates);
    rates->memory = 0;
    percent(device, "memory_utilization", now_us(), &rates->memory);
    return percent(device, "utilization", now_us(), &rates->gpu);
}

API(nvmlDeviceGetMemoryInfo, nvmlDevice_t device, nvmlMemory_t *info)
{
    ENTER_DEVICE(device, !info);
    nvmlMemory_v2_t split;
    nvmlReturn_t code = memory(device, &split);
    if (!code)
        *info = (nvmlMemory_t){split.total, split.free, split.total - split.free};
    return code;
}

API(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t device, nvmlMemory_v2_t *info)
{
    ENTER_DEVICE(device, !info);
    if (info->version != MEMORY_V2) /* a version mismatch, but this is what the driver says */
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    return memory(device, info);
}

API(nvmlDeviceGetBAR1MemoryInfo, nvmlDevice_t device, nvmlBAR1Memory_t *info)
{
    ENTER_DEVICE(device, !info);
    nvmlReturn_t code = whole(device, "bar1_total", &info->total);
    if (code)
        return code;
    info->used = 0;
    whole(device, "bar1_used", &info->used);
    info->free = info->total - info->used;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetTemperature, nvmlDevice_t device, unsigned sensor, unsigned *value)
{
    ENTER_DEVICE(device, !value || sensor);
    return celsius(device, "temperature", value);
}

API(nvmlDeviceGetTemperatureV, nvmlDevice_t device, nvmlTemperature_t *info)
{
    ENTER_DEVICE(device, !info || info->sensorType);
    if (info->version != TEMPERATURE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return celsius(device, "temperature", (unsigned *)&info->temperature);
}

API(nvmlDeviceGetTemperatureThreshold, nvmlDevice_t device, unsigned threshold, unsigned *value)
{
    static const char *const keys[] = {"temperature_shutdown", "temperature_slowdown",
                                       "temperature_memory_max", "temperature_gpu_max"};
    ENTER_DEVICE(device, !value || threshold > 7);
    return threshold > 3 ? NVML_ERROR_NOT_SUPPORTED : small(device, keys[threshold], value);
}

API(nvmlDeviceGetMarginTemperature, nvmlDevice_t device, nvmlMarginTemperature_t *info)
{
    ENTER_DEVICE(device, !info);
    if (info->version != MARGIN_TEMPERATURE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned now = 0, limit = 0;
    nvmlReturn_t code = celsius(device, "temperature", &now);
    if (!code)
        code = small(device, "temperature_slowdown", &limit);
    if (!code)
        info->marginTemperature = (int)limit - (int)now;
    return code;
}

API(nvmlDeviceGetPowerUsage, nvmlDevice_t device, unsigned *milliwatts)
{
    ENTER_DEVICE(device, !milliwatts);
    return watts(device, now_us(), milliwatts);
}

API(nvmlDeviceGetPowerManagementLimitConstraints, nvmlDevice_t device, unsigned *least,
    unsigned *most)
{
    ENTER_DEVICE(device, !least || !most);
    nvmlReturn_t code = small(device, "power_min_limit_mw", least);
    return code ? code : small(device, "power_max_limit_mw", most);
}

/* A counter: where it starts plus what it grew by. */
static nvmlReturn_t counted(const struct device *device, const char *name, double grown, u64 *value)
{
    nvmlReturn_t code = whole(device, name, value);
    if (!code)
        *value += (u64)grown;
    return code;
}

API(nvmlDeviceGetTotalEnergyConsumption, nvmlDevice_t device, u64 *millijoules)
{
    ENTER_DEVICE(device, !millijoules);
    count_until(now_us());
    return counted(device, "energy_mj", counters[device->gpu].energy_mj, millijoules);
}

API(nvmlDeviceGetPcieThroughput, nvmlDevice_t device, unsigned counter, unsigned *kib_s)
{
    ENTER_DEVICE(device, !kib_s || counter > 1);
    nvmlReturn_t code = small(device, counter ? "pcie_rx_kib_s" : "pcie_tx_kib_s", kib_s);
    if (!code)
        *kib_s *= share(device->gpu, now_us());
    return code;
}

/* A counter of 32 bits, which starts again at 0 beyond them. */
static nvmlReturn_t wrapped(const struct device *device, const char *name, double grown,
                            unsigned *value)
{
    u64 wide = 0;
    nvmlReturn_t code = counted(device, name, grown, &wide);
    *value = (unsigned)wide;
    return code;
}

static nvmlReturn_t field(const struct device *device, nvmlFieldValue_t *field)
{
    const struct counters *grown = &counters[device->gpu];
    field->valueType = VALUE_UNSIGNED_LONG_LONG;
    switch (field->fieldId) {
    case 74:
        return counted(device, "power_violation_ns", grown->power_ns, &field->value.ullVal);
    case 75:
        return counted(device, "thermal_violation_ns", grown->thermal_ns, &field->value.ullVal);
    case 76:
        return counted(device, "sync_boost_violation_ns", grown->sync_ns, &field->value.ullVal);
    case 271:
        return counted(device, "power_brake_violation_ns", grown->brake_ns, &field->value.ullVal);
    case 83:
        return counted(device, "energy_mj", grown->energy_mj, &field->value.ullVal);
    }
    field->valueType = VALUE_UNSIGNED_INT;
    switch (field->fieldId) {
    case 82:
        return celsius(device, "memory_temperature", &field->value.uiVal);
    case 185:
    case 186:
        return watts(device, now_us(), &field->value.uiVal);
    case 187:
        return small(device, "power_min_limit_mw", &field->value.uiVal);
    case 188:
        return small(device, "power_max_limit_mw", &field->value.uiVal);
    case 189:
        return small(device, "power_default_limit_mw", &field->value.uiVal);
    case 190:
    case 192:
        return small(device, "power_limit_mw", &field->value.uiVal);
    case 191:
        return wrapped(device, "energy_mj", grown->energy_mj, &field->value.uiVal);
    case 197:
        return wrapped(device, "pcie_tx_bytes", grown->tx_bytes, &field->value.uiVal);
    case 198:
        return wrapped(device, "pcie_rx_bytes", grown->rx_bytes, &field->value.uiVal);
    }
    field->valueType = VALUE_DOUBLE;
    field->timestamp = field->latencyUsec = 0;
    return NVML_ERROR_INVALID_ARGUMENT;
}

API(nvmlDeviceGetFieldValues, nvmlDevice_t device, int size, nvmlFieldValue_t *values)
{
    ENTER_DEVICE(device, !values || size < 0);
    count_until(now_us());
    for (int i = 0; i < size; i++) {
        char id[16];
        snprintf(id, sizeof id, "%u", values[i].fieldId);
        values[i].timestamp = now_us();
        values[i].latencyUsec = 1;
        values[i].valueType = VALUE_UNSIGNED_INT;
        values[i].value.ullVal = 0;
        values[i].nvmlReturn =
            (nvmlReturn_t)number_of(&state->gpus[device->gpu], "field_error.", id, NVML_SUCCESS);
        if (!values[i].nvmlReturn)
            values[i].nvmlReturn = field(device, &values[i]);
    }
    return NVML_SUCCESS;
}

/*
 * The driver's rings: power each 20 ms for 2.4 s, utilization each 200 ms for 14 s. Clocks have a
 * ring that is always empty. Asked for its size a ring names one entry more than it then fills.
 */
API(nvmlDeviceGetSamples, nvmlDevice_t device, unsigned kind, u64 last_seen_us,
    nvmlValueType_t *type, unsigned *size, nvmlSample_t *samples)
{
    static const char *const keys[] = {"power_mw", "utilization", "memory_utilization", "encoder",
                                       "decoder"};
    ENTER_DEVICE(device, !type || !size || kind > 6);
    int clocks = kind > 4;
    if (!clocks && !key(device, keys[kind]))
        return NVML_ERROR_NOT_SUPPORTED;
    u64 period = kind ? 200000 : 20000, newest = now_us() / period;
    unsigned room = clocks ? 100 : kind ? 72 : 120, filled = 0;
    *type = VALUE_UNSIGNED_INT;
    if (!samples) {
        *size = room;
        return NVML_SUCCESS;
    }
    if (clocks)
        return NVML_ERROR_NOT_FOUND;
    for (u64 tick = newest - room + 2; tick <= newest && filled < *size; tick++) {
        u64 time = tick * period;
        if (time <= last_seen_us)
            continue;
        nvmlSample_t *sample = &samples[filled];
        sample->timeStamp = time;
        sample->sampleValue.ullVal = 0;
        nvmlReturn_t code = kind ? percent(device, keys[kind], time, &sample->sampleValue.uiVal)
                                 : watts(device, time, &sample->sampleValue.uiVal);
        if (code)
            return code;
        filled++;
    }
    if (!filled)
        return NVML_ERROR_NOT_FOUND;
    *size = filled;
    return NVML_SUCCESS;
}

/* ---- processes ------------------------------------------------------------------------------- */

static nvmlReturn_t processes(const struct device *device, const char *name, unsigned *size,
                              nvmlProcessInfo_t *infos)
{
    const char *listed = key(device, name);
    unsigned found = 0, room = *size;
    while (listed && *listed) {
        char *end;
        int own = !strncmp(listed, "self", 4);
        unsigned pid = own ? (unsigned)getpid() : (unsigned)strtoul(listed, &end, 10);
        const char *bytes = strchr(listed, ':');
        int known = bytes && isdigit((unsigned char)bytes[1]);
        if (infos && found < room)
            infos[found] = (nvmlProcessInfo_t){
                .pid = pid,
                .usedGpuMemory = known ? strtoull(bytes + 1, NULL, 10) : ~0ull,
                .gpuInstanceId = device->slice < 0 ? NO_INSTANCE : (unsigned)device->slice + 1,
                .computeInstanceId = device->slice < 0 ? NO_INSTANCE : 0,
            };
        found++;
        listed = strchr(listed, ',');
        listed = listed ? listed + 1 : NULL;
    }
    *size = found;
    return found && (!infos || found > room) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESSES(name, from) \
    API(name, nvmlDevice_t device, unsigned *size, nvmlProcessInfo_t *infos) \
    { \
        ENTER_DEVICE(device, !size); \
        return processes(device, from, size, infos); \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "processes")
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics_processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics_processes")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps_processes")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps_processes")

typedef struct {
    unsigned pid;
    u64 timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

API(nvmlDeviceGetProcessUtilization, nvmlDevice_t device, nvmlProcessUtilizationSample_t *entries,
    unsigned *size, u64 seen_us)
{
    ENTER_DEVICE(device, !size);
    const char *listed = key(device, "process_utilization");
    unsigned found = 0, room = entries ? *size : 0;
    if (!listed)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!*listed || now_us() <= seen_us)
        return NVML_ERROR_NOT_FOUND;
    while (listed && *listed) {
        int own = !strncmp(listed, "self", 4);
        const char *percent = strchr(listed, ':');
        if (found < room)
            entries[found] = (nvmlProcessUtilizationSample_t){
                .pid = own ? (unsigned)getpid() : (unsigned)strtoul(listed, NULL, 10),
                .timeStamp = now_us(),
                .smUtil = percent ? (unsigned)strtoul(percent + 1, NULL, 10) : 0,
            };
        found++;
        listed = strchr(listed, ',');
        listed = listed ? listed + 1 : NULL;
    }
    *size = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* ---- MIG ------------------------------------------------------------------------------------- */

API(nvmlDeviceGetMigMode, nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(device, !current || !pending);
    if (!find(&state->gpus[device->gpu], "mig"))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = slices(device->gpu) > 0;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetMaxMigDeviceCount, nvmlDevice_t device, unsigned *most)
{
    ENTER_DEVICE(device, !most);
    *most = slices(device->gpu) ? MAX_SLICES : 0;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t device, unsigned index, nvmlDevice_t *slice)
{
    ENTER_DEVICE(device, !slice || device->slice >= 0 || index >= MAX_SLICES);
    if (index >= (unsigned)slices(device->gpu))
        return NVML_ERROR_NOT_FOUND;
    *slice = &devices[device->gpu][index + 1];
    return NVML_SUCCESS;
}

API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t slice, nvmlDevice_t *device)
{
    ENTER_DEVICE(slice, !device || slice->slice < 0);
    *device = &devices[slice->gpu][0];
    return NVML_SUCCESS;
}

API(nvmlDeviceIsMigDeviceHandle, nvmlDevice_t device, unsigned *is_slice)
{
    ENTER_DEVICE(device, !is_slice);
    *is_slice = device->slice >= 0;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetGpuInstanceId, nvmlDevice_t device, unsigned *id)
{
    ENTER_DEVICE(device, !id || device->slice < 0);
    *id = device->slice + 1;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetComputeInstanceId, nvmlDevice_t device, unsigned *id)
{
    ENTER_DEVICE(device, !id || device->slice < 0);
    *id = 0;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetAttributes_v2, nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER_DEVICE(device, !attributes);
    nvmlMemory_v2_t info;
    if (device->slice < 0 || memory(device, &info))
        return NVML_ERROR_NOT_SUPPORTED;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = 16,
        .sharedCopyEngineCount = 1,
        .sharedDecoderCount = 1,
        .sharedJpegCount = 1,
        .gpuInstanceSliceCount = 1,
        .computeInstanceSliceCount = 1,
        .memorySizeMB = info.total >> 20,
    };
    return NVML_SUCCESS;
}

/* ---- GPM ------------------------------------------------------------------------------------- */

enum { GPM_SHORTEST_US = 100000, GPM_DRAM = 10 };

/* A percentage's value at full load, or a rate (`per_second`), for a utilization of 100 %. */
static const struct gpm_metric {
    unsigned id;
    const char *short_name, *name, *key;
    double full;
    int per_second;
} gpm_metrics[] = {
    {1, "gract", "GRAPHICS_UTIL", NULL, 93, 0},
    {2, "smutil", "SM_UTIL", NULL, 89, 0},
    {3, "smocc", "SM_OCCUPANCY", NULL, 14, 0},
    {4, "intutil", "INTEGER_UTIL", NULL, 2, 0},
    {5, "mmaact", "ANY_TENSOR_UTIL", NULL, 86, 0},
    {6, "dfmat", "DFMA_TENSOR_UTIL", NULL, 0, 0},
    {7, "hmmat", "HMMA_TENSOR_UTIL", NULL, 86, 0},
    {8, "dmmat", "DMMA_TENSOR_UTIL", NULL, 0, 0},
    {9, "immat", "IMMA_TENSOR_UTIL", NULL, 0, 0},
    {10, "dram", "DRAM_BW_UTIL", NULL, 16, 0},
    {11, "fp64", "FP64_UTIL", NULL, 0, 0},
    {12, "fp32", "FP32_UTIL", NULL, 3, 0},
    {13, "fp16", "FP16_UTIL", NULL, 0, 0},
    {20, "pcitx", "PCIE_TX_PER_SEC", "pcie_tx_kib_s", 0, 1},
    {21, "pcirx", "PCIE_RX_PER_SEC", "pcie_rx_kib_s", 0, 1},
    {60, "nvlrx", "NVLINK_TOTAL_RX_PER_SEC", NULL, 0, 1},
    {61, "nvltx", "NVLINK_TOTAL_TX_PER_SEC", NULL, 0, 1},
};

API(nvmlGpmQueryDeviceSupport, nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ENTER_DEVICE(device, !support);
    if (support->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = number(&state->gpus[device->gpu], "gpm_supported", 0) != 0;
    return NVML_SUCCESS;
}

API(nvmlGpmSampleAlloc, nvmlGpmSample_t *sample)
{
    ENTER(!sample);
    *sample = calloc(1, sizeof **sample);
    if (!*sample)
        return NVML_ERROR_MEMORY;
    if (!number(&state->global, "log_calls", 0))
        record(__func__, -1, NVML_SUCCESS);
    return NVML_SUCCESS;
}

API(nvmlGpmSampleFree, nvmlGpmSample_t sample)
{
    ENTER(!sample);
    free(sample);
    if (!number(&state->global, "log_calls", 0))
        record(__func__, -1, NVML_SUCCESS);
    return NVML_SUCCESS;
}

static nvmlReturn_t sample_gpm(const struct device *device, nvmlGpmSample_t sample)
{
    if (!number(&state->gpus[device->gpu], "gpm_supported", 0))
        return NVML_ERROR_NOT_SUPPORTED;
    *sample = (struct gpm_sample){now_us(), device->gpu, 1};
    return NVML_SUCCESS;
}

API(nvmlGpmSampleGet, nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ENTER_DEVICE(device, !sample);
    return sample_gpm(device, sample);
}

API(nvmlGpmMigSampleGet, nvmlDevice_t device, unsigned instance, nvmlGpmSample_t sample)
{
    ENTER_DEVICE(device, !sample || !instance || instance > (unsigned)slices(device->gpu));
    return sample_gpm(device, sample);
}

/* One metric between two samples, with what a driver says when they were not far enough apart. */
static void gpm_value(nvmlGpmMetric_t *metric, const struct gpm_sample *from,
                      const struct gpm_sample *until)
{
    static const struct gpm_metric unlisted = {0};
    const struct table *table = &state->gpus[from->gpu];
    const struct gpm_metric *known = NULL;
    for (size_t i = 0; i < sizeof gpm_metrics / sizeof *gpm_metrics; i++)
        if (gpm_metrics[i].id == metric->metricId)
            known = &gpm_metrics[i];
    char own[16];
    snprintf(own, sizeof own, "gpm.%u", metric->metricId);
    const char *given = find(table, own);
    metric->value = 0;
    if (!known && !given) {
        metric->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;
        metric->metricInfo = (nvmlGpmMetricInfo_t){NULL, NULL, NULL};
        return;
    }
    known = known ? known : &unlisted;
    metric->metricInfo = (nvmlGpmMetricInfo_t){known->short_name, known->name,
                                               known->per_second ? "MiB/s" : "%"};
    metric->nvmlReturn =
        from->taken && until->taken ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (metric->nvmlReturn)
        return;
    double full = known->key ? number(table, known->key, 0) / 1024
                             : known->full * number(table, "utilization", 0) / 100;
    if (given)
        full = strtod(given, NULL);
    if (until->taken_us < from->taken_us)
        metric->value = known->per_second ? -3.07e16 : 0;
    else if (until->taken_us >= from->taken_us + GPM_SHORTEST_US)
        metric->value = full * mean_share(from->gpu, from->taken_us, until->taken_us);
    else if (metric->metricId == GPM_DRAM)
        metric->value = NAN;
}

API(nvmlGpmMetricsGet, nvmlGpmMetricsGet_t *get)
{
    ENTER(!get || !get->sample1 || !get->sample2 || get->numMetrics > 477);
    if (get->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct gpm_sample *from = get->sample1, *until = get->sample2;
    if (from == until || (from->taken && until->taken && from->gpu != until->gpu))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = refusal(from->gpu, __func__);
    for (unsigned i = 0; !code && i < get->numMetrics; i++)
        gpm_value(&get->metrics[i], from, until);
    return code;
}
