/* libcudart: errors, versions, devices, and the way to the driver's functions. */
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>

#include "budget.h"
#include "devices.h"
#include "properties.h"

static __thread cudaError last_error;

cudaError outcome(cudaError error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

int current_physical(void)
{
    return physical_device(thread_ordinal());
}

cudaError begin(void)
{
    if (forked_after_start())
        return outcome(cudaErrorInitializationError);
    if (visible_device_count() == 0)
        return outcome(cudaErrorNoDevice);
    if (!enter_device(current_physical()))
        return outcome(cudaErrorMemoryAllocation);
    thread_bind();
    return cudaSuccess;
}

cudaError cudaGetLastError(void)
{
    cudaError error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError cudaPeekAtLastError(void)
{
    return last_error;
}

static const struct {
    cudaError error;
    const char *name, *text;
} error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const char *cudaGetErrorName(cudaError error)
{
    for (size_t i = 0; i < sizeof error_texts / sizeof *error_texts; i++)
        if (error_texts[i].error == error)
            return error_texts[i].name;
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError error)
{
    for (size_t i = 0; i < sizeof error_texts / sizeof *error_texts; i++)
        if (error_texts[i].error == error)
            return error_texts[i].text;
    return "unknown error";
}

cudaError cudaDriverGetVersion(int *version)
{
    *version = CUDA_VERSION_NUMBER;
    return cudaSuccess;
}

cudaError cudaRuntimeGetVersion(int *version)
{
    *version = CUDA_VERSION_NUMBER;
    return cudaSuccess;
}

cudaError cudaGetDeviceCount(int *count)
{
    *count = 0;
    if (forked_after_start())
        return outcome(cudaErrorInitializationError);
    *count = visible_device_count();
    return *count == 0 ? outcome(cudaErrorNoDevice) : cudaSuccess;
}

cudaError cudaGetDevice(int *ordinal)
{
    if (forked_after_start())
        return outcome(cudaErrorInitializationError);
    *ordinal = thread_ordinal();
    return cudaSuccess;
}

cudaError cudaSetDevice(int ordinal)
{
    if (forked_after_start())
        return outcome(cudaErrorInitializationError);
    if (physical_device(ordinal) < 0)
        return outcome(cudaErrorInvalidDevice);
    thread_choose(ordinal);
    return begin();
}

/* CUDA 12 kept the old name for an older structure. */
#if CUDA_MAJOR < 13
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#endif

cudaError cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal)
{
    if (forked_after_start())
        return outcome(cudaErrorInitializationError);
    if (physical_device(ordinal) < 0)
        return outcome(cudaErrorInvalidDevice);
    device_properties(physical_device(ordinal), properties);
    return cudaSuccess;
}

cudaError cudaDeviceGetAttribute(int *value, int attribute, int ordinal)
{
    if (physical_device(ordinal) < 0)
        return outcome(cudaErrorInvalidDevice);
    *value = device_attribute(physical_device(ordinal), attribute);
    return cudaSuccess;
}

cudaError cudaDeviceGetPCIBusId(char *text, int room, int ordinal)
{
    if (physical_device(ordinal) < 0)
        return outcome(cudaErrorInvalidDevice);
    char pci[PCI_TEXT_BYTES];
    device_pci_text(physical_device(ordinal), pci);
    snprintf(text, (size_t)room, "%s", pci + 4); /* the runtime writes a domain of four digits */
    return cudaSuccess;
}

cudaError cudaDeviceSynchronize(void)
{
    BEGIN();
    return cudaSuccess;
}

/* No peer access: copies between devices then go through cudaMemcpyPeerAsync, which is a plain copy here. */
cudaError cudaDeviceCanAccessPeer(int *can, int from, int to)
{
    (void)from, (void)to;
    *can = 0;
    return cudaSuccess;
}

cudaError cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer, (void)flags;
    return outcome(cudaErrorPeerAccessUnsupported);
}

/* PyTorch takes all of its driver functions from here. */
cudaError cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                           unsigned long long flags, int *status)
{
    (void)version, (void)flags;
    static void *driver;
    if (driver == NULL)
        driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *function = driver == NULL ? NULL : dlsym(driver, symbol);
    if (status != NULL)
        *status = *function == NULL ? 1 : 0; /* cudaDriverEntryPointSymbolNotFound */
    return *function == NULL && status == NULL ? outcome(cudaErrorSymbolNotFound) : cudaSuccess;
}

cudaError cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status)
{
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDA_VERSION_NUMBER, flags, status);
}
