#pragma once

// Memory of the devices, which the host cannot touch, and pinned memory of the host.

#include <cstddef>

#include "device.h"

namespace standin {

/// Reserves the addresses of a device.
void map_memory(Device& device);

/// The number of the device that has this address; -1 for memory of the host.
int device_of(const void* pointer);

bool is_pinned(const void* pointer, size_t bytes);

/// As standin_view().
void* view(const void* pointer, size_t bytes, const char* who);

}  // namespace standin
