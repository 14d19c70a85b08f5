/* libnvidia-ml.so.1: NVML over the shared budget. It always shows every device and every process of the rig, whatever
 * CUDA_VISIBLE_DEVICES says, as the real one does. Functions that are not here are missing from the library:
 * nvidia-ml-py turns that into NVMLError_FunctionNotFound. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "devices.h"
#include "knobs.h"

typedef int nvml_return;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

#define VALUE_NOT_AVAILABLE UINT64_MAX

/* A handle is the address of one of these. */
struct nvml_device {
    int physical;
};
static struct nvml_device devices[MAX_DEVICES];
static int users; /* of nvmlInit, less nvmlShutdown */

/* FAKEGPU_NVML_FAIL = init | memory | processes, read at each call so that a test can turn it in a running agent. */
static bool told_to_fail(const char *part)
{
    return knob_equals("FAKEGPU_NVML_FAIL", part);
}

static nvml_return text_out(char *out, unsigned room, const char *text)
{
    return (size_t)snprintf(out, room, "%s", text) < room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

#define NEED_INIT()                          \
    do {                                     \
        if (users == 0)                      \
            return NVML_ERROR_UNINITIALIZED; \
    } while (0)

#define NEED_DEVICE(device)                                                    \
    do {                                                                       \
        NEED_INIT();                                                           \
        if ((device) < devices || (device) >= devices + budget_device_count()) \
            return NVML_ERROR_INVALID_ARGUMENT;                                \
    } while (0)

/* ---- the library and the system ---- */

nvml_return nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (told_to_fail("init"))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    for (int i = 0; i < MAX_DEVICES; i++)
        devices[i].physical = i;
    users++;
    return NVML_SUCCESS;
}

nvml_return nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvml_return nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvml_return nvmlShutdown(void)
{
    NEED_INIT();
    users--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvml_return error)
{
    switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

nvml_return nvmlSystemGetDriverVersion(char *version, unsigned room)
{
    NEED_INIT();
    return text_out(version, room, "580.65.06");
}

nvml_return nvmlSystemGetNVMLVersion(char *version, unsigned room)
{
    NEED_INIT();
    return text_out(version, room, "13.580.65.06");
}

nvml_return nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = CUDA_VERSION_NUMBER;
    return NVML_SUCCESS;
}

nvml_return nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* ---- devices and their identity ---- */

nvml_return nvmlDeviceGetCount_v2(unsigned *count)
{
    NEED_INIT();
    *count = (unsigned)budget_device_count();
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetHandleByIndex_v2(unsigned index, struct nvml_device **device)
{
    NEED_INIT();
    if (index >= (unsigned)budget_device_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetHandleByUUID(const char *uuid, struct nvml_device **device)
{
    NEED_INIT();
    for (int i = 0; i < budget_device_count(); i++) {
        char text[UUID_TEXT_BYTES];
        device_uuid_text(i, text);
        if (strcmp(text, uuid) == 0)
            return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Takes "00000000:10:00.0" and the shorter "0000:10:00.0". */
nvml_return nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct nvml_device **device)
{
    NEED_INIT();
    unsigned domain, bus, slot;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < budget_device_count(); i++)
        if (domain == 0 && slot == 0 && bus == (unsigned)device_pci_bus(i))
            return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
    return NVML_ERROR_NOT_FOUND;
}

nvml_return nvmlDeviceGetIndex(const struct nvml_device *device, unsigned *index)
{
    NEED_DEVICE(device);
    *index = (unsigned)device->physical;
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetMinorNumber(const struct nvml_device *device, unsigned *minor)
{
    return nvmlDeviceGetIndex(device, minor);
}

nvml_return nvmlDeviceGetUUID(const struct nvml_device *device, char *uuid, unsigned room)
{
    NEED_DEVICE(device);
    char text[UUID_TEXT_BYTES];
    device_uuid_text(device->physical, text);
    return text_out(uuid, room, text);
}

nvml_return nvmlDeviceGetName(const struct nvml_device *device, char *name, unsigned room)
{
    NEED_DEVICE(device);
    return text_out(name, room, DEVICE_NAME);
}

struct nvml_pci_info { /* nvmlPciInfo_t, as of nvmlDeviceGetPciInfo_v3 */
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

nvml_return nvmlDeviceGetPciInfo_v3(const struct nvml_device *device, struct nvml_pci_info *info)
{
    NEED_DEVICE(device);
    memset(info, 0, sizeof *info);
    device_pci_text(device->physical, info->bus_id);
    memcpy(info->legacy_bus_id, info->bus_id + 4, 12); /* four digits of the domain fit there */
    info->bus = (unsigned)device_pci_bus(device->physical);
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetCudaComputeCapability(const struct nvml_device *device, int *major, int *minor)
{
    NEED_DEVICE(device);
    *major = CAPABILITY_MAJOR;
    *minor = CAPABILITY_MINOR;
    return NVML_SUCCESS;
}

/* ---- memory ---- */

struct nvml_memory { /* nvmlMemory_t */
    unsigned long long total, unused, used;
};

struct nvml_memory_v2 { /* nvmlMemory_v2_t */
    unsigned version;
    unsigned long long total, reserved, unused, used;
};

nvml_return nvmlDeviceGetMemoryInfo(const struct nvml_device *device, struct nvml_memory *memory)
{
    NEED_DEVICE(device);
    if (told_to_fail("memory"))
        return NVML_ERROR_GPU_IS_LOST;
    memory->total = budget_total_bytes();
    memory->used = budget_used_bytes(device->physical);
    memory->unused = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetMemoryInfo_v2(const struct nvml_device *device, struct nvml_memory_v2 *memory)
{
    if (memory->version != (sizeof *memory | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct nvml_memory now;
    nvml_return answer = nvmlDeviceGetMemoryInfo(device, &now);
    if (answer != NVML_SUCCESS)
        return answer;
    memory->total = now.total;
    memory->reserved = 0;
    memory->unused = now.unused;
    memory->used = now.used;
    return NVML_SUCCESS;
}

/* ---- processes ---- */

struct nvml_process_v1 { /* what PyTorch reads, through the unversioned name */
    unsigned pid;
    unsigned long long used;
};

struct nvml_process { /* nvmlProcessInfo_v2_t and _v3 */
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

enum { NOT_AN_INSTANCE = -1 };

/* FAKEGPU_NVML_HIDE_BYTES=1: pids are known, their bytes are not (WDDM, some containers and vGPUs). */
static unsigned long long shown(uint64_t bytes)
{
    return knob_equals("FAKEGPU_NVML_HIDE_BYTES", "1") ? VALUE_NOT_AVAILABLE : bytes;
}

static nvml_return running_processes(const struct nvml_device *device, unsigned *count, struct process_bytes *found)
{
    NEED_DEVICE(device);
    if (told_to_fail("processes"))
        return NVML_ERROR_NO_PERMISSION;
    unsigned room = *count;
    *count = (unsigned)budget_processes(device->physical, found, MAX_PROCESSES);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvml_return nvmlDeviceGetComputeRunningProcesses(const struct nvml_device *device, unsigned *count,
                                                 struct nvml_process_v1 *out)
{
    struct process_bytes found[MAX_PROCESSES];
    nvml_return answer = running_processes(device, count, found);
    for (unsigned i = 0; answer == NVML_SUCCESS && i < *count; i++)
        out[i] = (struct nvml_process_v1){(unsigned)found[i].pid, shown(found[i].bytes)};
    return answer;
}

nvml_return nvmlDeviceGetComputeRunningProcesses_v3(const struct nvml_device *device, unsigned *count,
                                                    struct nvml_process *out)
{
    struct process_bytes found[MAX_PROCESSES];
    nvml_return answer = running_processes(device, count, found);
    for (unsigned i = 0; answer == NVML_SUCCESS && i < *count; i++)
        out[i] = (struct nvml_process){(unsigned)found[i].pid, shown(found[i].bytes), (unsigned)NOT_AN_INSTANCE,
                                       (unsigned)NOT_AN_INSTANCE};
    return answer;
}

nvml_return nvmlDeviceGetComputeRunningProcesses_v2(const struct nvml_device *device, unsigned *count,
                                                    struct nvml_process *out)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}

static nvml_return nobody(const struct nvml_device *device, unsigned *count)
{
    NEED_DEVICE(device);
    *count = 0;
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetGraphicsRunningProcesses_v3(const struct nvml_device *device, unsigned *count, void *out)
{
    (void)out;
    return nobody(device, count);
}

nvml_return nvmlDeviceGetGraphicsRunningProcesses_v2(const struct nvml_device *device, unsigned *count, void *out)
{
    (void)out;
    return nobody(device, count);
}

nvml_return nvmlDeviceGetGraphicsRunningProcesses(const struct nvml_device *device, unsigned *count, void *out)
{
    (void)out;
    return nobody(device, count);
}

nvml_return nvmlDeviceGetMPSComputeRunningProcesses_v3(const struct nvml_device *device, unsigned *count, void *out)
{
    (void)out;
    return nobody(device, count);
}

/* ---- what this card has not got ---- */

#define NOT_SUPPORTED(name)              \
    nvml_return name(void)               \
    {                                    \
        return NVML_ERROR_NOT_SUPPORTED; \
    }

NOT_SUPPORTED(nvmlDeviceGetMigMode)
NOT_SUPPORTED(nvmlDeviceGetMaxMigDeviceCount)
NOT_SUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
NOT_SUPPORTED(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)
NOT_SUPPORTED(nvmlDeviceGetGpuInstanceId)
NOT_SUPPORTED(nvmlDeviceGetComputeInstanceId)
NOT_SUPPORTED(nvmlDeviceGetUtilizationRates)
NOT_SUPPORTED(nvmlDeviceGetTemperature)
NOT_SUPPORTED(nvmlDeviceGetPowerUsage)
NOT_SUPPORTED(nvmlDeviceGetNvLinkState)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_SUPPORTED(nvmlDeviceGetP2PStatus)

nvml_return nvmlDeviceIsMigDeviceHandle(const struct nvml_device *device, unsigned *is_mig)
{
    NEED_DEVICE(device);
    *is_mig = 0;
    return NVML_SUCCESS;
}

struct nvml_fabric_info { /* nvmlGpuFabricInfo_v2_t; expandable segments ask whether fabric handles can work */
    unsigned version;
    unsigned char cluster[16];
    nvml_return status;
    unsigned clique;
    unsigned char state; /* 0: not supported */
    unsigned health_mask;
};

nvml_return nvmlDeviceGetGpuFabricInfoV(const struct nvml_device *device, struct nvml_fabric_info *info)
{
    NEED_DEVICE(device);
    memset(info->cluster, 0, sizeof info->cluster);
    info->status = NVML_SUCCESS;
    info->clique = 0;
    info->state = 0;
    return NVML_SUCCESS;
}
