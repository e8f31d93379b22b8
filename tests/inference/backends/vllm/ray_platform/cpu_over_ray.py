"""A platform plugin for vLLM: its CPUs, which it runs over no Ray, named to Ray as the GPUs of a node.

vLLM finds it by the entry point beside it, in every process that has this folder on its path.
"""


def platform():
    """The name of the class, for vLLM to import."""
    return "cpu_over_ray_platform.CpuOverRay"
