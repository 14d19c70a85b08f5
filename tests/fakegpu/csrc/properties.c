#include "properties.h"

#include <string.h>

#include "budget.h"
#include "devices.h"

/* Figures of an A100 80GB, from the CUDA programming guide's table of compute capability 8.0 and the A100 datasheet. */
void device_properties(int physical, struct cudaDeviceProp *out)
{
    memset(out, 0, sizeof *out);
    strncpy(out->name, DEVICE_NAME, sizeof out->name - 1);
    device_uuid(physical, out->uuid);
    out->totalGlobalMem = budget_total_bytes();
    out->sharedMemPerBlock = 48 << 10;
    out->sharedMemPerBlockOptin = 163 << 10;
    out->sharedMemPerMultiprocessor = 164 << 10;
    out->regsPerBlock = 65536;
    out->regsPerMultiprocessor = 65536;
    out->warpSize = 32;
    out->memPitch = 2147483647;
    out->maxThreadsPerBlock = 1024;
    out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    out->maxGridSize[0] = 2147483647;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->totalConstMem = 65536;
    out->major = CAPABILITY_MAJOR;
    out->minor = CAPABILITY_MINOR;
    out->textureAlignment = 512;
    out->multiProcessorCount = MULTIPROCESSORS;
    out->canMapHostMemory = 1;
    out->concurrentKernels = 1;
    out->ECCEnabled = 1;
    out->pciBusID = device_pci_bus(physical);
    out->asyncEngineCount = 3;
    out->unifiedAddressing = 1;
    out->memoryBusWidth = 5120;
    out->l2CacheSize = 40 << 20;
    out->maxThreadsPerMultiProcessor = 2048;
    out->maxBlocksPerMultiProcessor = 32;
    out->streamPrioritiesSupported = 1;
    out->cooperativeLaunch = 1;
}

int device_attribute(int physical, int attribute)
{
    struct cudaDeviceProp properties;
    device_properties(physical, &properties);
    switch (attribute) {
    case attributeMaxThreadsPerBlock: return properties.maxThreadsPerBlock;
    case attributeMaxBlockDimX: return properties.maxThreadsDim[0];
    case attributeMaxBlockDimY: return properties.maxThreadsDim[1];
    case attributeMaxBlockDimZ: return properties.maxThreadsDim[2];
    case attributeMaxGridDimX: return properties.maxGridSize[0];
    case attributeMaxGridDimY: return properties.maxGridSize[1];
    case attributeMaxGridDimZ: return properties.maxGridSize[2];
    case attributeMaxSharedMemoryPerBlock: return (int)properties.sharedMemPerBlock;
    case attributeMaxSharedMemoryPerBlockOptin: return (int)properties.sharedMemPerBlockOptin;
    case attributeMaxSharedMemoryPerMultiprocessor: return (int)properties.sharedMemPerMultiprocessor;
    case attributeWarpSize: return properties.warpSize;
    case attributeMaxRegistersPerBlock: return properties.regsPerBlock;
    case attributeMaxRegistersPerMultiprocessor: return properties.regsPerMultiprocessor;
    case attributeMultiProcessorCount: return properties.multiProcessorCount;
    case attributePciBusId: return properties.pciBusID;
    case attributeL2CacheSize: return properties.l2CacheSize;
    case attributeMaxThreadsPerMultiProcessor: return properties.maxThreadsPerMultiProcessor;
    case attributeMaxBlocksPerMultiprocessor: return properties.maxBlocksPerMultiProcessor;
    case attributeComputeCapabilityMajor: return properties.major;
    case attributeComputeCapabilityMinor: return properties.minor;
    case attributeCanMapHostMemory:
    case attributeConcurrentKernels:
    case attributeUnifiedAddressing:
    case attributeStreamPrioritiesSupported:
    case attributeCooperativeLaunch:
    case attributeHostRegisterSupported:
    case attributeVirtualMemoryManagementSupported:
    case attributeMemoryPoolsSupported: return 1;
    default: return 0; /* fabric handles, multicast, RDMA: not here */
    }
}
