"""Reads NVML through nvidia-ml-py each time a line comes in, as an agent beside the jobs would; one JSON object out."""

from __future__ import annotations

import json
import sys

import pynvml as nvml

nvml.nvmlInit()
for _ in sys.stdin:
    devices = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        pci = nvml.nvmlDeviceGetPciInfo(handle)
        try:
            mig = nvml.nvmlDeviceGetMigMode(handle)
        except nvml.NVMLError_NotSupported:
            mig = None
        try:
            fan_speed = nvml.nvmlDeviceGetFanSpeed(handle)
        except nvml.NVMLError_FunctionNotFound:
            fan_speed = None
        devices.append(
            {
                "uuid": uuid,
                "name": nvml.nvmlDeviceGetName(handle),
                "found_by_uuid": nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)),
                "found_by_pci": nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(pci.busId)),
                "total_bytes": memory.total,
                "used_bytes": memory.used,
                "used_bytes_v2": nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used,
                "processes": {p.pid: p.usedGpuMemory for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)},
                "graphics": len(nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)),
                "mig": mig,
                "missing_function": fan_speed,
            }
        )
    print(json.dumps({"driver": nvml.nvmlSystemGetDriverVersion(), "devices": devices}), flush=True)
