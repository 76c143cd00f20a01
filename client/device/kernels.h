/* The kernels that a plug-in for device memory exports beside its copies (plugin.h): thresholds of
 * pruning, tensors into payloads and back. Plain C, in the same way.
 *
 * Every result is that of the host's kernels, bit for bit, but for which NaN a NaN is: thresholds
 * those of client/prune/threshold.h, payloads and residuals those of aggregator/core/sparse.h and
 * narrow.h, averages those of client/core/sums/average.h.
 *
 * All memory is the device's or page-locked, aligned for 16 bytes where nothing else is said, and
 * stays as it is until the mark that is returned has passed. Work is done in the order of the
 * calls; those that return a mark only start it. NULL: failed, plugin.h's error() says how. One
 * thread at a time, as plugin.h's.
 */
#pragma once

#include "client/device/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_DEVICE_KERNELS_ABI 3u
#define SLUICE_DEVICE_KERNELS_SYMBOL "sluice_device_kernels"

/* A float32 tensor in chunks. */
struct sluice_device_tensor {
  const float* gradient;
  float* residual;      /* as many; only update_residual(), give_back() and scale() write it */
  uint64_t elem_count;  /* below 2^32 */
  uint32_t chunk_elems; /* of every chunk but the last, which may have fewer; above 0 */
  uint32_t wire;        /* how elements travel: float32 0, float16 1, bfloat16 2, int8 4 */
};

enum sluice_device_rule_kind {
  SLUICE_DEVICE_RANK = 1,    /* the `rank`th greatest magnitude, from 1 to elem_count: "static" */
  SLUICE_DEVICE_SIGMA = 2,   /* so many standard deviations: "sigma" */
  SLUICE_DEVICE_DYNAMIC = 3, /* three times the mean of what is above, from zero: "dynamic" */
  SLUICE_DEVICE_ALL = 4      /* all of it leaves */
};
struct sluice_device_rule {
  uint32_t kind;
  uint64_t rank;
  double sigmas;
};

/* What the residual keeps of a chunk's gradient + residual; see update_residual(). */
enum sluice_device_fate {
  SLUICE_DEVICE_OPEN = 0,      /* as it was */
  SLUICE_DEVICE_DELIVERED = 1, /* what packing did not let leave, or lost by rounding */
  SLUICE_DEVICE_MISSED = 2,    /* all of it */
  SLUICE_DEVICE_UNKNOWN = 3    /* nothing */
};

/* A chunk's result, and what becomes of the sum that it brings: sum * factor / divisor. */
struct sluice_device_result {
  uint64_t first_byte; /* of as many, at any address: as pack() makes them, or none: zeros */
  uint32_t bytes;
  float factor;
  float divisor;
  uint32_t unused;
};

/* A chunk's extent: how many bytes it has, in so many low bits, and above them its first one. */
#define SLUICE_DEVICE_EXTENT_BITS 16u

struct sluice_device_kernels {
  uint32_t abi; /* SLUICE_DEVICE_KERNELS_ABI */
  /* The device's memory; it begins as zeros. Both may wait for the device. */
  void* (*acquire)(struct sluice_device* device, size_t bytes);
  void (*free)(struct sluice_device* device, void* memory);
  /* What find_threshold() of the tensor needs to work in. */
  uint64_t (*workspace_bytes)(const struct sluice_device_tensor* tensor);
  /* Within the device's memory, or between it and page-locked memory; in order with the kernels. */
  struct sluice_device_mark* (*copy)(struct sluice_device* device, void* to, const void* from,
                                     size_t bytes);
  /* How big gradient + residual must be to leave, into *threshold, which stays on the device. */
  struct sluice_device_mark* (*find_threshold)(struct sluice_device* device,
                                               const struct sluice_device_tensor* tensor,
                                               const struct sluice_device_rule* rule,
                                               void* workspace, float* threshold);
  /* What of gradient + residual leaves: chunk i where extents[i] says, in no order, but without
   * gaps; behind the last one's extent is how many bytes there are. A chunk's are an entry of a
   * sparse packet, none where nothing leaves, or as many as a dense payload has, and then one.
   * `packed` has room for a dense payload of every chunk. */
  struct sluice_device_mark* (*pack)(struct sluice_device* device,
                                     const struct sluice_device_tensor* tensor,
                                     const float* threshold, uint8_t* packed, uint64_t* extents);
  /* The residual from now on is what became of what pack() has packed with the same threshold, or,
   * threshold NULL, convert(): by chunk a sluice_device_fate. fates NULL: all was delivered. */
  struct sluice_device_mark* (*update_residual)(struct sluice_device* device,
                                                const struct sluice_device_tensor* tensor,
                                                const float* threshold, const uint8_t* fates);
  /* Dense payloads of `count` chunks, no two of the same, as far apart as convert() has them: they
   * will not be delivered after all, and what they hold is the residual's again. */
  struct sluice_device_mark* (*give_back)(struct sluice_device* device,
                                          const struct sluice_device_tensor* tensor,
                                          const uint32_t* chunks, const uint8_t* payloads,
                                          uint32_t count);
  /* So many floats, each times the factor. */
  struct sluice_device_mark* (*scale)(struct sluice_device* device, float* values, uint64_t count,
                                      float factor);
  /* All of gradient + residual, rounded: the chunks' dense payloads, one behind the other. */
  struct sluice_device_mark* (*convert)(struct sluice_device* device,
                                        const struct sluice_device_tensor* tensor,
                                        uint8_t* payloads);
  /* Results, of which the host has checked the entries, into averages. gradient and residual are
   * not used. */
  struct sluice_device_mark* (*unpack)(struct sluice_device* device,
                                       const struct sluice_device_tensor* tensor,
                                       const uint8_t* values,
                                       const struct sluice_device_result* results, float* output);
};

/* The plug-in exports one object of this type under SLUICE_DEVICE_KERNELS_SYMBOL. */

#ifdef __cplusplus
}
#endif
