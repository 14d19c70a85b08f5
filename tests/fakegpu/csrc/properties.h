/* What the fake devices answer about themselves, the same to the runtime's and the driver's questions. */
#ifndef FAKEGPU_PROPERTIES_H
#define FAKEGPU_PROPERTIES_H

#include "cuda_abi.h"

void device_properties(int physical, struct cudaDeviceProp *out);
int device_attribute(int physical, int attribute);

#endif
