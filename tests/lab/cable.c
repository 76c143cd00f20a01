// Cables in user space: carry frames between pairs of network devices, as a long and lossy link
// does.
//
//     lab_cable mbps=200 delay_us=15000 queue=1000 loss_ppm=1000 seed=1 a0 b0 a1 b1
//
// carries a0 <-> b0 and a1 <-> b1. Each way of a cable has a link of its own rate with a queue of
// so many frames, which drops what finds it full; then loss, delay, jitter, reordering and
// duplicates, drawn from the seed. A frame is due by the time at which the kernel got it, so that a
// late look at the devices loses no rate. The process ends with its parent, or by SIGTERM; then it
// prints what it has carried as one object of JSON. It holds at most kMostHeld frames a way. One
// thread.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

enum {
  kMostWays = 128,
  kMostHeld = 1 << 16,
  kSlots = 2048,     // frames in a device's ring: 120 ms of 200 Mb/s
  kWireBytes = 24,   // a frame's preamble, checksum and gap, as the lab's other links count them
  kAtOnce = 64,      // frames of one call
  kLateNs = 1000000  // a frame that leaves later than this is counted
};
#define IDLE_NS 2000000u

// Of every cable, both ways. The loss comes in bursts of so many frames on average (Gilbert's
// model); a frame of `reorder_ppm` is held back by up to `reorder_us` while others pass.
enum {
  kMbps,
  kDelay,
  kQueue,
  kLoss,
  kBurst,
  kJitter,
  kReorderUs,
  kReorder,
  kDuplicate,
  kSeed,
  kMtu
};
static const char* const kNames[] = {"mbps",          "delay_us",  "queue",      "loss_ppm",
                                     "burst",         "jitter_us", "reorder_us", "reorder_ppm",
                                     "duplicate_ppm", "seed",      "mtu"};
static uint64_t options[] = {0, 0, 1000, 0, 1, 0, 0, 0, 0, 1, 1500};  // mbps=0: no limit

struct frame {
  uint64_t due_ns;
  uint32_t bytes;
  uint8_t data[];
};
struct way {
  int in, out;
  uint8_t* ring;
  uint32_t slot;
  uint64_t random, free_ns, last_due_ns, accepted;
  uint64_t* leaves_ns;  // when the last `queue` frames leave the queue
  bool bad;             // within a burst of losses
  struct frame** heap;  // the one due first is heap[0]
  size_t held;
};
struct counts {
  uint64_t carried, lost, full, duplicated, late, latest_us, overrun;
};
static struct counts counts[2];  // there, back
static volatile sig_atomic_t ended;

static void end(int number) {
  (void)number;
  ended = 1;
}

static void fail(const char* what) {
  fprintf(stderr, "lab_cable: %s: %s\n", what, strerror(errno));
  exit(1);
}

static uint64_t now_ns(void) {  // the clock of the kernel's receive times
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double draw(struct way* way) {  // splitmix64, in [0, 1)
  uint64_t x = way->random += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

static bool chance(struct way* way, int ppm) { return draw(way) * 1e6 < (double)options[ppm]; }

static bool is_lost(struct way* way) {
  if (options[kBurst] <= 1) return chance(way, kLoss);
  const double loss = (double)options[kLoss] / 1e6, burst = (double)options[kBurst];
  way->bad = draw(way) < (way->bad ? 1 - 1 / burst : loss / (burst * (1 - loss)));
  return way->bad;
}

static void hold(struct way* way, struct counts* count, const uint8_t* data, uint32_t bytes,
                 uint64_t due_ns) {
  struct frame* frame = way->held < kMostHeld ? malloc(sizeof *frame + bytes) : NULL;
  if (frame == NULL) {
    ++count->full;
    return;
  }
  frame->due_ns = due_ns;
  frame->bytes = bytes;
  memcpy(frame->data, data, bytes);
  size_t at = way->held++;
  for (; at > 0 && way->heap[(at - 1) / 2]->due_ns > due_ns; at = (at - 1) / 2)
    way->heap[at] = way->heap[(at - 1) / 2];
  way->heap[at] = frame;
}

static struct frame* take(struct way* way) {
  struct frame *first = way->heap[0], *last = way->heap[--way->held];
  size_t at = 0;
  for (size_t below; (below = 2 * at + 1) < way->held; at = below) {
    if (below + 1 < way->held && way->heap[below + 1]->due_ns < way->heap[below]->due_ns) ++below;
    if (way->heap[below]->due_ns >= last->due_ns) break;
    way->heap[at] = way->heap[below];
  }
  way->heap[at] = last;
  return first;
}

// A frame that reached the near end at `arrival_ns`.
static void carry(struct way* way, struct counts* count, const uint8_t* data, uint32_t bytes,
                  uint64_t arrival_ns) {
  uint64_t* leaves_ns = &way->leaves_ns[way->accepted % options[kQueue]];
  if (*leaves_ns > arrival_ns) {  // the frame that was accepted `queue` frames ago still waits
    ++count->full;
    return;
  }
  if (way->free_ns < arrival_ns) way->free_ns = arrival_ns;
  if (options[kMbps] != 0) way->free_ns += (bytes + kWireBytes) * 8000u / options[kMbps];
  *leaves_ns = way->free_ns;
  ++way->accepted;
  if (is_lost(way)) {
    ++count->lost;
    return;
  }
  uint64_t due_ns = way->free_ns + options[kDelay] * 1000 +
                    (uint64_t)(draw(way) * (double)options[kJitter] * 1000);
  if (due_ns <= way->last_due_ns) due_ns = way->last_due_ns + 1;  // jitter alone reorders nothing
  if (chance(way, kReorder))
    due_ns += (uint64_t)(draw(way) * (double)options[kReorderUs] * 1000);
  else
    way->last_due_ns = due_ns;
  hold(way, count, data, bytes, due_ns);
  if (chance(way, kDuplicate)) {
    ++count->duplicated;
    hold(way, count, data, bytes, due_ns + 1);
  }
}

// Takes what has arrived at the near end; returns whether anything has.
static bool receive(struct way* way, struct counts* count) {
  const uint32_t slot_bytes = options[kMtu] > 1800 ? 16384 : 2048;
  bool any = false;
  for (;; any = true, way->slot = (way->slot + 1) % kSlots) {
    struct tpacket2_hdr* slot = (void*)(way->ring + (size_t)way->slot * slot_bytes);
    if ((__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) == 0) return any;
    carry(way, count, (uint8_t*)slot + slot->tp_mac, slot->tp_snaplen,
          (uint64_t)slot->tp_sec * 1000000000u + slot->tp_nsec);
    __atomic_store_n(&slot->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
  }
}

// Sends the frames that are due until `until_ns` out of the far end.
static void send_due(struct way* way, struct counts* count, uint64_t until_ns, uint64_t now) {
  while (way->held > 0 && way->heap[0]->due_ns <= until_ns) {
    struct frame* frames[kAtOnce];
    struct iovec pieces[kAtOnce];
    struct mmsghdr messages[kAtOnce];
    unsigned taken = 0;
    for (; taken < kAtOnce && way->held > 0 && way->heap[0]->due_ns <= until_ns; ++taken) {
      struct frame* frame = frames[taken] = take(way);
      const uint64_t late_ns = now > frame->due_ns ? now - frame->due_ns : 0;
      count->late += late_ns > kLateNs;
      if (late_ns / 1000 > count->latest_us) count->latest_us = late_ns / 1000;
      pieces[taken] = (struct iovec){frame->data, frame->bytes};
      messages[taken] = (struct mmsghdr){.msg_hdr = {.msg_iov = &pieces[taken], .msg_iovlen = 1}};
    }
    for (unsigned sent = 0; sent < taken;) {
      const int some = sendmmsg(way->out, messages + sent, taken - sent, MSG_DONTWAIT);
      count->carried += some > 0 ? (unsigned)some : 0;
      count->overrun += some <= 0;  // this one the device does not take
      sent += some > 0 ? (unsigned)some : 1;
    }
    for (unsigned i = 0; i < taken; ++i) free(frames[i]);
  }
}

static int open_device(const char* name, uint8_t** ring) {
  const int device = socket(AF_PACKET, SOCK_RAW, 0);
  const int version = TPACKET_V2, on = 1;
  const unsigned slot_bytes = options[kMtu] > 1800 ? 16384 : 2048, block_bytes = 1 << 16;
  struct tpacket_req request = {block_bytes, kSlots / (block_bytes / slot_bytes), slot_bytes,
                                kSlots};
  struct sockaddr_ll address = {.sll_family = AF_PACKET,
                                .sll_protocol = __builtin_bswap16(ETH_P_ALL),
                                .sll_ifindex = (int)if_nametoindex(name)};
  if (device < 0 || address.sll_ifindex == 0 ||
      setsockopt(device, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
      setsockopt(device, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
      setsockopt(device, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0 ||
      bind(device, (struct sockaddr*)&address, sizeof address) != 0)
    fail(name);
  *ring = mmap(NULL, (size_t)kSlots * slot_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);
  if (*ring == MAP_FAILED) fail(name);
  return device;
}

static int parse(int argc, char** argv) {  // the number of the first device
  int at = 1;
  for (; at < argc && strchr(argv[at], '=') != NULL; ++at) {
    const size_t length = (size_t)(strchr(argv[at], '=') - argv[at]);
    size_t name = 0;
    while (name < sizeof options / sizeof *options &&
           (strlen(kNames[name]) != length || strncmp(kNames[name], argv[at], length) != 0))
      ++name;
    if (name == sizeof options / sizeof *options) errno = EINVAL, fail(argv[at]);
    options[name] = strtoull(argv[at] + length + 1, NULL, 10);
  }
  const int devices = argc - at;
  if (devices < 2 || devices % 2 != 0 || devices > kMostWays || options[kQueue] == 0 ||
      options[kLoss] >= 1000000)
    errno = EINVAL, fail("usage: lab_cable [NAME=VALUE ...] DEVICE DEVICE [DEVICE DEVICE ...]");
  return at;
}

static void report(const struct way* ways, int way_count) {
  for (int i = 0; i < way_count; ++i) {
    struct tpacket_stats stats = {0};
    socklen_t bytes = sizeof stats;
    getsockopt(ways[i].in, SOL_PACKET, PACKET_STATISTICS, &stats, &bytes);
    counts[i % 2].overrun += stats.tp_drops;
  }
  for (int i = 0; i < 2; ++i)
    printf("%s\"%s\": {\"carried\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"full\": %" PRIu64
           ", \"duplicated\": %" PRIu64 ", \"late\": %" PRIu64 ", \"latest_us\": %" PRIu64
           ", \"overrun\": %" PRIu64 "}%s",
           i == 0 ? "{" : ", ", i == 0 ? "there" : "back", counts[i].carried, counts[i].lost,
           counts[i].full, counts[i].duplicated, counts[i].late, counts[i].latest_us,
           counts[i].overrun, i == 0 ? "" : "}\n");
}

int main(int argc, char** argv) {
  static struct way ways[kMostWays];
  static struct pollfd polled[kMostWays];
  const int first = parse(argc, argv), way_count = argc - first;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  prctl(PR_SET_TIMERSLACK, 1);
  // Where the system allows it, before all other processes: a cable is no work of theirs.
  (void)sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 1});
  signal(SIGTERM, end);
  signal(SIGINT, end);
  for (int i = 0; i < way_count; ++i) {
    ways[i].in = polled[i].fd = open_device(argv[first + i], &ways[i].ring);
    polled[i].events = POLLIN;
    ways[i].random = options[kSeed] << 16 ^ (uint64_t)i;
    ways[i].leaves_ns = calloc(options[kQueue], sizeof *ways[i].leaves_ns);
    ways[i].heap = calloc(kMostHeld, sizeof *ways[i].heap);
    if (ways[i].leaves_ns == NULL || ways[i].heap == NULL) fail("memory");
  }
  for (int i = 0; i < way_count; ++i) ways[i].out = ways[i ^ 1].in;
  puts("ready");
  fflush(stdout);
  // While frames are under way the devices are looked at by the clock, and frames leave together.
  uint64_t tick_ns = options[kDelay] * 1000 / 4, busy_ns = 0;
  tick_ns = tick_ns < 50000 ? 50000 : tick_ns > 250000 ? 250000 : tick_ns;
  while (!ended) {
    const uint64_t now = now_ns();
    for (int i = 0; i < way_count; ++i) {
      if (receive(&ways[i], &counts[i % 2])) busy_ns = now;
      send_due(&ways[i], &counts[i % 2], now + tick_ns / 2, now);
      if (ways[i].held > 0) busy_ns = now;
    }
    if (now - busy_ns < IDLE_NS)
      nanosleep(&(struct timespec){0, (long)tick_ns}, NULL);
    else
      poll(polled, (nfds_t)way_count, 1000);
  }
  report(ways, way_count);
  return 0;
}
