/* The interface of a plug-in for device memory: a table of functions that copy bytes between one
 * device and host memory that the plug-in allocates. It is plain C, so that neither side depends on
 * the other's C++ library. The plug-in knows neither tensors nor the protocol.
 *
 * mark() may be called from any thread, also while another function runs; the others from one
 * thread at a time. Nothing but open, close, allocate and release may wait for the device.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_DEVICE_PLUGIN_ABI 1u
#define SLUICE_DEVICE_PLUGIN_SYMBOL "sluice_device_plugin"

struct sluice_device;      /* opaque: one device, opened by one of the paths below */
struct sluice_device_mark; /* opaque: a point in a device's work, see mark() */

/* How bytes get from the device's memory into the host's and back. Numbers are stable. */
enum sluice_device_path {
  SLUICE_DEVICE_PINNED = 1,   /* copy engines, into and out of page-locked memory */
  SLUICE_DEVICE_ZERO_COPY = 2 /* kernels, which read and write page-locked memory that is mapped */
};

struct sluice_device_facts {
  char name[128];
  double bytes_per_s; /* of a copy from the device, measured or known */
};

struct sluice_device_plugin {
  uint32_t abi;               /* SLUICE_DEVICE_PLUGIN_ABI */
  const char* (*error)(void); /* of the calling thread's last failed call */
  int32_t (*count)(void);     /* devices that there are; below 0: failed */
  /* NULL: this device can't be used by this path, or not at all. */
  struct sluice_device* (*open)(int32_t ordinal, int32_t path, struct sluice_device_facts* facts);
  void (*close)(struct sluice_device* device); /* waits for the copies that run */
  /* Host memory for the copies. NULL: failed. */
  void* (*allocate)(struct sluice_device* device, size_t bytes);
  void (*release)(struct sluice_device* device, void* memory);
  /* A mark of the work that the stream (cudaStream_t; NULL: the default one) has been given so far.
   * NULL: failed. */
  struct sluice_device_mark* (*mark)(struct sluice_device* device, void* stream);
  /* Start a copy, from the device and to it; the mark stands for its end. NULL: failed. Copies of
   * one direction may end in any order. `host` lies within memory that allocate() has returned. */
  struct sluice_device_mark* (*copy_in)(struct sluice_device* device, void* host,
                                        const void* memory, size_t bytes);
  struct sluice_device_mark* (*copy_out)(struct sluice_device* device, void* memory,
                                         const void* host, size_t bytes);
  /* Above 0: the work is done. 0: not yet. Below 0: it has failed. */
  int32_t (*passed)(struct sluice_device* device, struct sluice_device_mark* mark);
  /* Gives the mark back, passed or not. */
  void (*drop)(struct sluice_device* device, struct sluice_device_mark* mark);
};

/* The plug-in exports one object of this type under SLUICE_DEVICE_PLUGIN_SYMBOL. */

#ifdef __cplusplus
}
#endif
