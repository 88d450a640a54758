# All settings of gpumagic with their defaults. To change one, take the "# " from the start of
# its line, and either
#   - copy the line into ~/.ipython/profile_default/ipython_config.py, or
#   - put this file beside that one and add there: load_subconfig("gpumagic_config.py")
# In a running notebook, %config GpuMagic.window_s = 120 does the same until its kernel ends.

c = get_config()  # noqa: F821

# Seconds between two quick readings (NVML counters, torch's allocator); a live view alone has
# one each 0.2 s, unless this is set to something else.
# c.GpuMagic.interval_s = 0.1

# Seconds that the live view shows, or such as '10min' or 'all'; a running one without a -w
# follows.
# c.GpuMagic.window_s = 60.0

# GPUs to watch: indices, UUIDs, cuda:N, all, or usable (those of this kernel); for the next
# %gpuwatch or measured cell.
# c.GpuMagic.gpus = "usable"

# Strips of the live view, by their short names; for the next %gpuwatch.
# c.GpuMagic.metrics = "util,mem,power,temp"

# What draws the live view; auto takes bqplot while it can carry the load; for the next
# %gpuwatch.
# One of: auto, bqplot, svg, html.
# c.GpuMagic.renderer = "auto"

# What looks at the notebook, where it is told wrongly; headless keeps a still picture in the
# file, colab replaces its output; for the next %gpuwatch.
# One of: auto, terminal, page, headless, vscode, colab.
# c.GpuMagic.front_end = "auto"

# Updates of the live view per second; a running one follows.
# c.GpuMagic.updates_per_s = 4.0

# MiB of memory for what is recorded; beyond it old readings are merged, their peaks kept. To be
# set before the first use.
# c.GpuMagic.memory_mib = 48.0

# From which figures on findings are reported, by name, such as {"near_full_ratio": 0.95}; the
# others keep their defaults.
# c.GpuMagic.thresholds = {}

# From which figures on alerts are shown below the live view, by name, such as
# {"idle_minutes": 10}; the others keep their defaults (docs/alerts.md); for the next %gpuwatch.
# c.GpuMagic.alerts = {}
