/* The little of CUDA's binary interface that the rig speaks, written down here so that building it needs no CUDA
 * headers. CUDA_MAJOR, 12 or 13, is that of the torch that it is built for.
 *
 * Sources: the CUDA Runtime API and CUDA Driver API references, 12.8 and 13.0 (struct cudaDeviceProp, cudaPointerAttributes,
 * cudaFuncAttributes, CUmemAllocationProp; enum values of cudaError, cudaDeviceAttr, cudaMemPoolAttr). Offsets are
 * checked below, against the layout that a compiler gives NVIDIA's own header. */
#ifndef FAKEGPU_CUDA_ABI_H
#define FAKEGPU_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int cudaError;
enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorPeerAccessUnsupported = 217,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorSymbolNotFound = 500,
    cudaErrorNotReady = 600,
    cudaErrorNotSupported = 801,
};
/* The driver's CUresult uses the same numbers for all of these. */
typedef int CUresult;

struct cudaDeviceProp {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int regsPerBlock;
    int warpSize;
    size_t memPitch;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
#if CUDA_MAJOR < 13
    int clockRate;
#endif
    size_t totalConstMem;
    int major;
    int minor;
    size_t textureAlignment;
    size_t texturePitchAlignment;
#if CUDA_MAJOR < 13
    int deviceOverlap;
#endif
    int multiProcessorCount;
#if CUDA_MAJOR < 13
    int kernelExecTimeoutEnabled;
#endif
    int integrated;
    int canMapHostMemory;
#if CUDA_MAJOR < 13
    int computeMode;
    int textureAndSurfaceLimits[40]; /* maxTexture1D .. maxSurfaceCubemapLayered */
#else
    int textureAndSurfaceLimits[38]; /* maxTexture1D .. maxSurfaceCubemapLayered */
#endif
    size_t surfaceAlignment;
    int concurrentKernels;
    int ECCEnabled;
    int pciBusID;
    int pciDeviceID;
    int pciDomainID;
    int tccDriver;
    int asyncEngineCount;
    int unifiedAddressing;
#if CUDA_MAJOR < 13
    int memoryClockRate;
#endif
    int memoryBusWidth;
    int l2CacheSize;
    int persistingL2CacheMaxSize;
    int maxThreadsPerMultiProcessor;
    int streamPrioritiesSupported;
    int globalL1CacheSupported;
    int localL1CacheSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor;
    int managedMemory;
    int isMultiGpuBoard;
    int multiGpuBoardGroupID;
    int hostNativeAtomicSupported;
#if CUDA_MAJOR < 13
    int singleToDoublePrecisionPerfRatio;
#endif
    int pageableMemoryAccess;
    int concurrentManagedAccess;
    int computePreemptionSupported;
    int canUseHostPointerForRegisteredMem;
    int cooperativeLaunch;
#if CUDA_MAJOR < 13
    int cooperativeMultiDeviceLaunch;
#endif
    size_t sharedMemPerBlockOptin;
    int pageableMemoryAccessUsesHostPageTables;
    int directManagedMemAccessFromHost;
    int maxBlocksPerMultiProcessor;
    int rest[79]; /* accessPolicyMaxWindowSize .. reserved[56] */
};

#if CUDA_MAJOR < 13
_Static_assert(sizeof(struct cudaDeviceProp) == 1032, "cudaDeviceProp of CUDA 12");
_Static_assert(offsetof(struct cudaDeviceProp, major) == 360, "major");
_Static_assert(offsetof(struct cudaDeviceProp, multiProcessorCount) == 388, "multiProcessorCount");
_Static_assert(offsetof(struct cudaDeviceProp, concurrentKernels) == 576, "concurrentKernels");
_Static_assert(offsetof(struct cudaDeviceProp, l2CacheSize) == 616, "l2CacheSize");
_Static_assert(offsetof(struct cudaDeviceProp, sharedMemPerMultiprocessor) == 640, "sharedMemPerMultiprocessor");
_Static_assert(offsetof(struct cudaDeviceProp, sharedMemPerBlockOptin) == 696, "sharedMemPerBlockOptin");
#else
_Static_assert(sizeof(struct cudaDeviceProp) == 1008, "cudaDeviceProp of CUDA 13");
_Static_assert(offsetof(struct cudaDeviceProp, uuid) == 256, "uuid");
_Static_assert(offsetof(struct cudaDeviceProp, totalGlobalMem) == 288, "totalGlobalMem");
_Static_assert(offsetof(struct cudaDeviceProp, maxThreadsPerBlock) == 320, "maxThreadsPerBlock");
_Static_assert(offsetof(struct cudaDeviceProp, major) == 360, "major");
_Static_assert(offsetof(struct cudaDeviceProp, multiProcessorCount) == 384, "multiProcessorCount");
_Static_assert(offsetof(struct cudaDeviceProp, concurrentKernels) == 560, "concurrentKernels");
_Static_assert(offsetof(struct cudaDeviceProp, pciBusID) == 568, "pciBusID");
_Static_assert(offsetof(struct cudaDeviceProp, l2CacheSize) == 596, "l2CacheSize");
_Static_assert(offsetof(struct cudaDeviceProp, sharedMemPerMultiprocessor) == 624, "sharedMemPerMultiprocessor");
_Static_assert(offsetof(struct cudaDeviceProp, sharedMemPerBlockOptin) == 672, "sharedMemPerBlockOptin");
_Static_assert(offsetof(struct cudaDeviceProp, maxBlocksPerMultiProcessor) == 688, "maxBlocksPerMultiProcessor");
#endif

enum { cudaMemoryTypeUnregistered = 0, cudaMemoryTypeHost = 1, cudaMemoryTypeDevice = 2 };

struct cudaPointerAttributes {
    int type;
    int device;
    void *devicePointer;
    void *hostPointer;
#if CUDA_MAJOR >= 13
    long reserved[8];
#endif
};
_Static_assert(sizeof(struct cudaPointerAttributes) == (CUDA_MAJOR < 13 ? 24 : 88), "cudaPointerAttributes");

struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    size_t constSizeBytes;
    size_t localSizeBytes;
    int maxThreadsPerBlock;
    int numRegs;
    int ptxVersion;
    int binaryVersion;
    int cacheModeCA;
    int maxDynamicSharedSizeBytes;
    int rest[24];
};
_Static_assert(sizeof(struct cudaFuncAttributes) == 144, "cudaFuncAttributes of CUDA 13");

struct dim3 {
    unsigned x, y, z;
};

/* cudaDeviceAttr and CUdevice_attribute share their numbers. */
enum device_attribute {
    attributeMaxThreadsPerBlock = 1,
    attributeMaxBlockDimX = 2,
    attributeMaxBlockDimY = 3,
    attributeMaxBlockDimZ = 4,
    attributeMaxGridDimX = 5,
    attributeMaxGridDimY = 6,
    attributeMaxGridDimZ = 7,
    attributeMaxSharedMemoryPerBlock = 8,
    attributeWarpSize = 10,
    attributeMaxRegistersPerBlock = 12,
    attributeMultiProcessorCount = 16,
    attributeCanMapHostMemory = 19,
    attributeConcurrentKernels = 31,
    attributePciBusId = 33,
    attributeL2CacheSize = 38,
    attributeMaxThreadsPerMultiProcessor = 39,
    attributeUnifiedAddressing = 41,
    attributeComputeCapabilityMajor = 75,
    attributeComputeCapabilityMinor = 76,
    attributeStreamPrioritiesSupported = 78,
    attributeMaxSharedMemoryPerMultiprocessor = 81,
    attributeMaxRegistersPerMultiprocessor = 82,
    attributeCooperativeLaunch = 95,
    attributeMaxSharedMemoryPerBlockOptin = 97,
    attributeHostRegisterSupported = 99,
    attributeVirtualMemoryManagementSupported = 102,
    attributeMaxBlocksPerMultiprocessor = 106,
    attributeMemoryPoolsSupported = 115,
};

enum { memPoolAttributeFirstSize = 5, memPoolAttributeLastSize = 8 }; /* reserved and used bytes, now and highest */

struct CUmemLocation {
    int type; /* 1: device */
    int id;
};

struct CUmemAllocationProp {
    int type; /* 1: pinned */
    int requestedHandleTypes;
    struct CUmemLocation location;
    void *win32HandleMetaData;
    unsigned char allocFlags[8];
};
_Static_assert(sizeof(struct CUmemAllocationProp) == 32, "CUmemAllocationProp of CUDA 13");

enum { memHandleTypeFabric = 8 };

#endif
