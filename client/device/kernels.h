/* The kernels that a plug-in for device memory exports beside its copies (plugin.h): they find the
 * thresholds of pruning, pack tensors into payloads and unpack results. Plain C, as plugin.h.
 *
 * Every result equals that of the host's kernels bit for bit, but for the payload of a NaN.
 * Thresholds are those of client/prune/threshold.h, payloads and residuals those of
 * aggregator/core/sparse.h and narrow.h, averages those of client/core/sums/average.h.
 *
 * All memory is the device's or page-locked, is aligned for 16 bytes unless stated otherwise, and
 * stays as it is until the returned mark has passed. Work is done in the order of the calls; a call
 * that returns a mark only starts the work. NULL: failed, and plugin.h's error() says how. The
 * functions are called by one thread at a time, as plugin.h's.
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
  float* residual; /* elem_count too; only update_residual(), give_back() and scale() write it */
  uint64_t elem_count;  /* below 2^32 */
  uint32_t chunk_elems; /* of every chunk but the last, which may have fewer; above 0 */
  uint32_t wire;        /* how elements travel: float32 0, float16 1, bfloat16 2, int8 4 */
};

enum sluice_device_rule_kind {
  SLUICE_DEVICE_RANK = 1,    /* the `rank`th greatest magnitude, from 1 to elem_count: "static" */
  SLUICE_DEVICE_SIGMA = 2,   /* `sigmas` standard deviations: "sigma" */
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
  SLUICE_DEVICE_OPEN = 0,      /* stays as it was */
  SLUICE_DEVICE_DELIVERED = 1, /* what packing pruned, or lost by rounding */
  SLUICE_DEVICE_MISSED = 2,    /* all of it */
  SLUICE_DEVICE_UNKNOWN = 3    /* nothing */
};

/* A chunk's result. Its average is sum * factor / divisor. */
struct sluice_device_result {
  uint64_t first_byte; /* in `values`, at any alignment; the bytes are as pack() makes them */
  uint32_t bytes;      /* 0: the sum is zero */
  float factor;
  float divisor;
  uint32_t unused;
};

/* A chunk's extent: the number of its bytes in this many low bits, its first byte above them. */
#define SLUICE_DEVICE_EXTENT_BITS 16u

struct sluice_device_kernels {
  uint32_t abi; /* SLUICE_DEVICE_KERNELS_ABI */
  /* Memory of the device, filled with zeros. Both functions may wait for the device. */
  void* (*acquire)(struct sluice_device* device, size_t bytes);
  void (*free)(struct sluice_device* device, void* memory);
  /* The size of the workspace that find_threshold() needs for the tensor. */
  uint64_t (*workspace_bytes)(const struct sluice_device_tensor* tensor);
  /* Within the device's memory, or between it and page-locked memory; in order with the kernels. */
  struct sluice_device_mark* (*copy)(struct sluice_device* device, void* to, const void* from,
                                     size_t bytes);
  /* Writes the least magnitude of gradient + residual that leaves to *threshold, on the device. */
  struct sluice_device_mark* (*find_threshold)(struct sluice_device* device,
                                               const struct sluice_device_tensor* tensor,
                                               const struct sluice_device_rule* rule,
                                               void* workspace, float* threshold);
  /* Packs the elements of gradient + residual that leave. The bytes of chunk i lie where extents[i]
   * says, in no order of chunks, but without gaps; behind the last chunk's extent is the total of
   * bytes. A chunk's bytes are an entry of a sparse packet, or a dense payload where an entry would
   * not be shorter; it has none where nothing leaves. `packed` has room for a dense payload of
   * every chunk. */
  struct sluice_device_mark* (*pack)(struct sluice_device* device,
                                     const struct sluice_device_tensor* tensor,
                                     const float* threshold, uint8_t* packed, uint64_t* extents);
  /* Updates the residual by the fate of each chunk, a sluice_device_fate, that pack() has packed
   * with the same threshold or convert() has rounded (threshold NULL). fates NULL: all are
   * delivered. */
  struct sluice_device_mark* (*update_residual)(struct sluice_device* device,
                                                const struct sluice_device_tensor* tensor,
                                                const float* threshold, const uint8_t* fates);
  /* Adds the dense payloads of `count` different chunks, as far apart as convert() has them, to the
   * residual: they will not be delivered after all. */
  struct sluice_device_mark* (*give_back)(struct sluice_device* device,
                                          const struct sluice_device_tensor* tensor,
                                          const uint32_t* chunks, const uint8_t* payloads,
                                          uint32_t count);
  /* Multiplies `count` floats by the factor. */
  struct sluice_device_mark* (*scale)(struct sluice_device* device, float* values, uint64_t count,
                                      float factor);
  /* Rounds all of gradient + residual: the chunks' dense payloads, one behind the other. */
  struct sluice_device_mark* (*convert)(struct sluice_device* device,
                                        const struct sluice_device_tensor* tensor,
                                        uint8_t* payloads);
  /* Turns results, whose entries the host has checked, into averages. The tensor's gradient and
   * residual are not used. */
  struct sluice_device_mark* (*unpack)(struct sluice_device* device,
                                       const struct sluice_device_tensor* tensor,
                                       const uint8_t* values,
                                       const struct sluice_device_result* results, float* output);
};

/* The plug-in exports one object of this type under SLUICE_DEVICE_KERNELS_SYMBOL. */

#ifdef __cplusplus
}
#endif
