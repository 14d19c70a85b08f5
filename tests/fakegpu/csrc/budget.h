/* The memory of all fake GPUs of one user, shared by every process that uses them: who holds how many bytes of which
 * device.
 *
 * It lives in a small file in shared memory (FAKEGPU_STATE). Bytes of processes that died are taken back whenever
 * somebody looks, so that a killed rank gives its memory back as it would on a real card. Devices are numbered as NVML
 * numbers them ("physical"), whatever CUDA_VISIBLE_DEVICES says. */
#ifndef FAKEGPU_BUDGET_H
#define FAKEGPU_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { MAX_DEVICES = 16, MAX_PROCESSES = 512 };

/* Device memory comes in pieces of 2 MiB, as the driver hands it out to PyTorch. */
#define DEVICE_PAGE_BYTES ((size_t)2 << 20)

struct process_bytes {
    pid_t pid;
    uint64_t bytes; /* context included, as in nvidia-smi's process table */
};

int budget_device_count(void);
uint64_t budget_total_bytes(void);

/* Takes `bytes` of the device for the calling process; false when the device has not got them. */
bool budget_take(int device, uint64_t bytes);
void budget_give_back(int device, uint64_t bytes);

/* Creates this process's context on the device unless it has one; false when there is no room for it. */
bool budget_enter(int device);
bool budget_has_context(int device);

/* Bytes in use on the device by all living processes. */
uint64_t budget_used_bytes(int device);
/* Bytes of the calling process, without its context. */
uint64_t budget_own_bytes(int device);

/* Living processes with a context or memory on the device; returns how many there are, writes at most `room`. */
size_t budget_processes(int device, struct process_bytes *out, size_t room);

#endif
