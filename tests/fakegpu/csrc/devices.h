/* The fake devices as facts: names, identities, what CUDA_VISIBLE_DEVICES leaves of them, and this process's contexts
 * on them.
 *
 * "physical" is NVML's number of a device; "ordinal" is CUDA's, after CUDA_VISIBLE_DEVICES. */
#ifndef FAKEGPU_DEVICES_H
#define FAKEGPU_DEVICES_H

#include <stdbool.h>
#include <stddef.h>

#define DEVICE_NAME "Fake GPU (Tidegauge rig)"

/* An A100's: torch has kernels for it, and its attention and matmul paths are the plain ones (on 9.0 torch would reach
 * for cuDNN attention and TMA descriptors, that is for libraries that are not there). */
enum { CAPABILITY_MAJOR = 8, CAPABILITY_MINOR = 0, MULTIPROCESSORS = 108 };
/* What driver and runtime say they are: CUDA 13.0. */
enum { CUDA_VERSION_NUMBER = CUDA_MAJOR * 1000 };

enum { UUID_BYTES = 16, UUID_TEXT_BYTES = 41, PCI_TEXT_BYTES = 32 };

void device_uuid(int physical, unsigned char out[UUID_BYTES]);
/* "GPU-fa6e0000-NNNN-4000-8000-00000000000I" with FAKEGPU_NODE and the index. */
void device_uuid_text(int physical, char out[UUID_TEXT_BYTES]);
int device_pci_bus(int physical);
/* "00000000:10:00.0", as NVML writes it; the runtime's form is its last twelve characters. */
void device_pci_text(int physical, char out[PCI_TEXT_BYTES]);

/* The first call is this process's cuInit: it reads CUDA_VISIBLE_DEVICES for good. */
int visible_device_count(void);
/* -1 for an ordinal that is not there. */
int physical_device(int ordinal);

/* True in a child forked after its parent initialised CUDA: the real driver refuses everything there, and so do we. */
bool forked_after_start(void);

/* Makes this process's context on the device if there is none yet; false when its bytes are not there. */
bool enter_device(int physical);

/* Each thread has a current device (its ordinal, 0 at first). It is "bound" once a runtime call has made that device's
 * context current; before that the driver reports no context, as cuCtxGetCurrent does in a new thread. */
int thread_ordinal(void);
void thread_choose(int ordinal);
void thread_bind(void);
bool thread_is_bound(void);

#endif
