# Written by: gpumagic autoload on
# Loads gpumagic in each kernel of this environment; "gpumagic autoload off" takes it away.
# It leaves no name behind, and is silent once gpumagic is uninstalled.


def _gpumagic_autoload():
    try:
        from IPython import get_ipython

        get_ipython().extension_manager.load_extension("gpumagic")
    except ModuleNotFoundError as error:
        if error.name != "gpumagic":
            print(f"gpumagic was not loaded: {error} (gpumagic autoload off ends this)")
    except Exception as error:
        print(f"gpumagic was not loaded: {error} (gpumagic autoload off ends this)")


try:
    _gpumagic_autoload()
finally:
    del _gpumagic_autoload
