/* The interface of libsluice's DPDK plug-in: a table of functions that move Ethernet frames over
 * one virtio-user device. It is plain C, so that neither side depends on the other's C++ library.
 * The plug-in knows no address and no protocol. It starts DPDK's environment on a thread of its
 * own, because the start pins its caller to a CPU.
 *
 * open and close may be called from any thread; the other functions by one thread at a time for a
 * port.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_DPDK_PLUGIN_ABI 3u
#define SLUICE_DPDK_PLUGIN_SYMBOL "sluice_dpdk_plugin"

struct sluice_dpdk_port; /* opaque */

struct sluice_dpdk_options {
  const char* socket_path; /* of the appliance's vhost-user port */
  uint8_t mac[6];
  uint16_t mtu_bytes;
  /* Called with every log line of DPDK, without newline; level 1 (emergency) to 8 (debug). On any
   * thread, until the process ends: a process has one DPDK, and the first open's function stays in
   * use. */
  void (*log)(uint32_t level, const char* text);
};

struct sluice_dpdk_frame {
  uint8_t* data;
  uint32_t bytes;
  /* Of a frame to be sent: bytes that follow `data`, in other memory; or none. */
  uint32_t tail_bytes;
  const uint8_t* tail;
  void* buffer; /* of a received frame: the plug-in's */
};

struct sluice_dpdk_plugin {
  uint32_t abi; /* SLUICE_DPDK_PLUGIN_ABI */
  /* NULL: failed, and error() on this thread says why. */
  struct sluice_dpdk_port* (*open)(const struct sluice_dpdk_options* options);
  void (*close)(struct sluice_dpdk_port* port);
  const char* (*error)(void);
  /* Frames that may wait to be received. */
  uint32_t (*receive_capacity)(const struct sluice_dpdk_port* port);
  /* Receives up to `count` frames. They are valid until they are given back, each once, in any
   * order. */
  uint32_t (*rx_burst)(struct sluice_dpdk_port* port, struct sluice_dpdk_frame* frames,
                       uint32_t count);
  void (*give_back)(struct sluice_dpdk_port* port, const struct sluice_dpdk_frame* frames,
                    uint32_t count);
  /* Copies frames from the front into the ring's buffers and returns how many. No frame is longer
   * than the MTU plus an Ethernet header. */
  uint32_t (*tx_burst)(struct sluice_dpdk_port* port, const struct sluice_dpdk_frame* frames,
                       uint32_t count);
  /* Zero once the other side of the socket is gone. A system call: not for every burst. */
  int (*link_up)(struct sluice_dpdk_port* port);
  /* A descriptor that becomes readable when a frame arrives while armed, or -1: poll instead. */
  int (*rx_fd)(struct sluice_dpdk_port* port);
  void (*arm)(struct sluice_dpdk_port* port, int armed);
};

/* The plug-in exports one object of this type under SLUICE_DPDK_PLUGIN_SYMBOL. */

#ifdef __cplusplus
}
#endif
