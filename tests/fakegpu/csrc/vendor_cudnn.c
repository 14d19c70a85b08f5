/* cuDNN: layers succeed and compute nothing, and need no workspace. CUDNN_VERSION comes from the torch wheel's
 * metadata, because torch refuses a library of another version than the one that it was built with. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef CUDNN_VERSION
#define CUDNN_VERSION 92000
#endif

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

size_t cudnnGetCudartVersion(void)
{
    return 13000;
}

int cudnnGetProperty(int property, int *value)
{
    const int parts[] = {CUDNN_VERSION / 10000, CUDNN_VERSION / 100 % 100, CUDNN_VERSION % 100};
    *value = property >= 0 && property < 3 ? parts[property] : 0;
    return 0;
}

const char *cudnnGetErrorString(int error)
{
    return error == 0 ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_SUPPORTED";
}

void cudnnGetLastErrorString(char *text, size_t room)
{
    if (room > 0)
        text[0] = '\0';
}

int cudnnCreate(void **handle)
{
    static int a_handle;
    *handle = &a_handle;
    return 0;
}

/* ---- sizes that torch allocates: none ---- */

static int nothing(size_t *bytes)
{
    *bytes = 0;
    return 0;
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, void *x, void *z,
                                                             void *y, void *scale, void *activation, size_t *bytes)
{
    (void)handle, (void)mode, (void)operations, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    return nothing(bytes);
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x, void *y,
                                                      void *dy, void *dz, void *dx, void *scale, void *activation,
                                                      size_t *bytes)
{
    (void)handle, (void)mode, (void)operations, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale,
        (void)activation;
    return nothing(bytes);
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations, void *activation,
                                                         void *x, size_t *bytes)
{
    (void)handle, (void)mode, (void)operations, (void)activation, (void)x;
    return nothing(bytes);
}

int cudnnDropoutGetStatesSize(void *handle, size_t *bytes)
{
    (void)handle;
    return nothing(bytes);
}

/* ---- the backend interface, through which convolutions go ---- */

enum { /* cudnnBackendAttributeName_t */
       ENGINEHEUR_RESULTS = 202,
       EXECUTION_PLAN_WORKSPACE_SIZE = 402,
};
enum { TYPE_BACKEND_DESCRIPTOR = 15 }; /* cudnnBackendAttributeType_t */

int cudnnBackendCreateDescriptor(int type, void **descriptor)
{
    (void)type;
    static int a_descriptor;
    *descriptor = &a_descriptor;
    return 0;
}

/* Heuristics find one engine; it has no notes and no knobs, and its plan needs no workspace. */
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted, int64_t *count, void *out)
{
    (void)descriptor;
    if (count != NULL)
        *count = type == TYPE_BACKEND_DESCRIPTOR ? (name == ENGINEHEUR_RESULTS || wanted > 0)
                                                 : name == EXECUTION_PLAN_WORKSPACE_SIZE;
    if (name == EXECUTION_PLAN_WORKSPACE_SIZE && out != NULL && wanted > 0)
        memset(out, 0, sizeof(int64_t));
    return 0;
}
