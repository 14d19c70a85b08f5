/* libcudart: streams and events. Everything is in order and done at once; events know when they were recorded. */
#include "runtime.h"

#include <stdlib.h>
#include <time.h>

#include "memory.h"

struct event {
    struct timespec recorded;
};

cudaError cudaStreamCreateWithPriority(stream_handle *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    BEGIN();
    *stream = malloc(1); /* any address will do, as long as it is a new one */
    return cudaSuccess;
}

cudaError cudaStreamCreateWithFlags(stream_handle *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError cudaStreamCreate(stream_handle *stream)
{
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError cudaStreamDestroy(stream_handle stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError cudaStreamSynchronize(stream_handle stream)
{
    (void)stream;
    BEGIN();
    return cudaSuccess;
}

cudaError cudaStreamQuery(stream_handle stream)
{
    return cudaStreamSynchronize(stream);
}

cudaError cudaStreamWaitEvent(stream_handle stream, struct event *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return cudaSuccess;
}

cudaError cudaStreamGetPriority(stream_handle stream, int *priority)
{
    (void)stream;
    *priority = 0;
    return cudaSuccess;
}

cudaError cudaDeviceGetStreamPriorityRange(int *lowest, int *highest)
{
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
}

cudaError cudaStreamIsCapturing(stream_handle stream, int *status)
{
    (void)stream;
    *status = 0; /* cudaStreamCaptureStatusNone */
    return cudaSuccess;
}

cudaError cudaStreamGetCaptureInfo(stream_handle stream, int *status, unsigned long long *id, void **graph,
                                   const void **dependencies, const void **edges, size_t *count)
{
    (void)stream, (void)id, (void)graph, (void)dependencies, (void)edges, (void)count;
    *status = 0;
    return cudaSuccess;
}

cudaError cudaStreamGetCaptureInfo_v2(stream_handle stream, int *status, unsigned long long *id, void **graph,
                                      const void **dependencies, size_t *count)
{
    return cudaStreamGetCaptureInfo(stream, status, id, graph, dependencies, NULL, count);
}

cudaError cudaThreadExchangeStreamCaptureMode(int *mode)
{
    (void)mode;
    return cudaSuccess;
}

cudaError cudaStreamAddCallback(stream_handle stream, void (*callback)(stream_handle, cudaError, void *), void *data,
                                unsigned flags)
{
    (void)flags;
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}

cudaError cudaLaunchHostFunc(stream_handle stream, void (*function)(void *), void *data)
{
    (void)stream;
    function(data);
    return cudaSuccess;
}

cudaError cudaEventCreateWithFlags(struct event **event, unsigned flags)
{
    (void)flags;
    BEGIN();
    *event = calloc(1, sizeof **event);
    return *event == NULL ? outcome(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError cudaEventCreate(struct event **event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError cudaEventDestroy(struct event *event)
{
    free(event);
    return cudaSuccess;
}

cudaError cudaEventRecordWithFlags(struct event *event, stream_handle stream, unsigned flags)
{
    (void)stream, (void)flags;
    BEGIN();
    clock_gettime(CLOCK_MONOTONIC, &event->recorded);
    return cudaSuccess;
}

cudaError cudaEventRecord(struct event *event, stream_handle stream)
{
    return cudaEventRecordWithFlags(event, stream, 0);
}

/* "Pending" events keep blocks of record_stream waiting, the one asynchronous effect that memory tests need. Not ready
 * is an answer rather than an error, so it is not kept as the last error. */
cudaError cudaEventQuery(struct event *event)
{
    (void)event;
    return fakegpu_events_pending() ? cudaErrorNotReady : cudaSuccess;
}

cudaError cudaEventSynchronize(struct event *event)
{
    (void)event;
    return cudaSuccess;
}

cudaError cudaEventElapsedTime(float *milliseconds, const struct event *from, const struct event *to)
{
    *milliseconds = (float)((double)(to->recorded.tv_sec - from->recorded.tv_sec) * 1e3 +
                            (double)(to->recorded.tv_nsec - from->recorded.tv_nsec) * 1e-6);
    return cudaSuccess;
}

cudaError cudaProfilerStart(void)
{
    return cudaSuccess;
}

cudaError cudaProfilerStop(void)
{
    return cudaSuccess;
}
