"""The class of the plugin; importing it imports vLLM."""

from vllm.platforms.cpu import CpuPlatform


class CpuOverRay(CpuPlatform):
    """Processors, counted by Ray as `ray start --num-gpus` says."""

    ray_device_key = "GPU"
