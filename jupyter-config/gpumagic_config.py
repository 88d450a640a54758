# All settings of gpumagic with their defaults. To change one, take the "# " from the start of
# its line, and either
#   - copy the line into ~/.ipython/profile_default/ipython_config.py, or
#   - put this file beside that one and add there: load_subconfig("gpumagic_config.py")
# In a running notebook, %config GpuMagic.window_s = 120 does the same until its kernel ends.

c = get_config()  # noqa: F821

# Seconds between two quick readings (NVML counters, torch's allocator).
# c.GpuMagic.interval_s = 0.1

# Seconds that the live view shows; a running one without a -w follows.
# c.GpuMagic.window_s = 60.0

# GPUs to watch: indices, UUIDs, cuda:N, all, or usable (those of this kernel); for the next
# %gpuwatch or measured cell.
# c.GpuMagic.gpus = "usable"

# Strips of the live view, by their short names; for the next %gpuwatch.
# c.GpuMagic.metrics = "util,mem,power,temp"

# What draws the live view; auto takes bqplot while it can carry the load; for the next
# %gpuwatch.
# One of: auto, bqplot, svg.
# c.GpuMagic.renderer = "auto"

# Updates of the live view per second; a running one follows.
# c.GpuMagic.updates_per_s = 4.0

# Samples kept of each source and GPU before the oldest go; to be set before the first use.
# c.GpuMagic.max_samples = 72000

# From which figures on findings are reported, by name, such as {"near_full_ratio": 0.95}; the
# others keep their defaults.
# c.GpuMagic.thresholds = {}
