/* Sluice: sums gradients of many workers in a switch. The C interface of libsluice.
 *
 * A job is one training run; each of its processes is a worker with a rank 0 .. world_size - 1. A
 * worker joins a job at an appliance, submits each tensor once a step, and gets back the average
 * over all ranks. A step is one synchronised backward pass, counted from 1. Other libraries and
 * languages should use this interface; C++ programs may prefer sluice.hpp, Python has a package of
 * its own.
 *
 * Conventions, which hold for every function unless its own text says otherwise:
 *  - Every call returns a sluice_status. After a failure sluice_last_error() has one line of text
 *    with the cause, the values involved and the remedy. No C++ exception leaves a call.
 *  - Thread-safety: any thread may call any function at any time, concurrently, on the same job;
 *    only sluice_close() must be the last call on its job.
 *  - Blocking: a call that blocks says so and takes a timeout in milliseconds. SLUICE_FOREVER waits
 *    without limit, 0 does not wait. A blocked call asks options.interrupted every 100 ms at the
 *    latest.
 *  - A job that has failed stays failed: every later call returns the same status and text at once,
 *    and only sluice_close() is of use. Memory that was submitted is not touched after the failure
 *    has been returned.
 *  - A failed call that is not the job's own failure (a bad argument, a timeout) changes nothing.
 *  - Structs start with struct_size, set by the caller to sizeof of the struct that it was compiled
 *    with (or by sluice_options_init). Later versions append fields only.
 *  - Strings are UTF-8, ended by a zero byte, and copied: they need not outlive the call.
 *  - After fork() every job is inert in the child: calls return SLUICE_FORKED and touch nothing;
 *    the child's copies of the sockets are closed. Join again in the child when it shall take part.
 *  - The library writes no output unless the environment variable SLUICE_LOG is error, warn, info
 *    or debug (then to standard error), or a log callback is set.
 */
#ifndef SLUICE_SLUICE_H_
#define SLUICE_SLUICE_H_

#include <stddef.h>
#include <stdint.h>

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 1
#define SLUICE_VERSION_PATCH 0

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What became of a call. Numbers are stable. */
typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT = 1, /* the caller's value is wrong; the text names value and remedy */
  SLUICE_NOT_FOUND = 2,        /* a host name, a socket path or a plug-in does not exist */
  SLUICE_REFUSED = 3,          /* the appliance said no; the text is its own, with both values */
  SLUICE_UNREACHABLE = 4,      /* nothing answers at the address, or it has stopped to answer */
  SLUICE_TIMED_OUT = 5,        /* this call's own timeout passed; what it waited for goes on. From
                                  sluice_join(): some ranks did not come, the text names them */
  SLUICE_PEER_LOST = 6,        /* another rank died, fell silent or left; the text names it */
  SLUICE_EXHAUSTED = 7,        /* a limit would be exceeded; the text has the numbers */
  SLUICE_IO_ERROR = 8,         /* the operating system or DPDK said no */
  SLUICE_CLOSED = 9,           /* this worker has left the job */
  SLUICE_BUSY = 10,            /* the tensor's previous submission, or a collective, is not done */
  SLUICE_INTERRUPTED = 11,     /* options.interrupted said so; what the call waited for goes on */
  SLUICE_FORKED = 12,          /* the job belongs to the parent process */
  SLUICE_INTERNAL = 13         /* a bug in this library; please report the text */
} sluice_status;

/* Element types. Sums accumulate in float32. */
typedef enum sluice_dtype {
  SLUICE_FLOAT32 = 0,
  SLUICE_FLOAT16 = 1,
  SLUICE_BFLOAT16 = 2
} sluice_dtype;

/* What an output holds. Must be the same on every rank; it is not checked. */
typedef enum sluice_averaging {
  /* Sum of the inputs / sum of the weights. An input is the sum over `weight` samples; with weight
   * 1 everywhere this is the mean of the inputs. */
  SLUICE_AVERAGE_WEIGHT = 0,
  /* Sum of the inputs / world_size. */
  SLUICE_AVERAGE_WORLD = 1,
  /* Sum of the inputs. */
  SLUICE_SUM = 2
} sluice_averaging;

typedef enum sluice_log_level {
  SLUICE_LOG_ERROR = 0,
  SLUICE_LOG_WARN = 1,
  SLUICE_LOG_INFO = 2,
  SLUICE_LOG_DEBUG = 3
} sluice_log_level;

#define SLUICE_FOREVER (-1)

/* One worker's membership of one job. Opaque; made by sluice_join, freed by sluice_close. */
typedef struct sluice_job sluice_job;

/* Callbacks get options.user. Those marked (P) run on the job's progress thread: they must return
 * soon, because packets wait meanwhile, and must not call a function of this library that blocks
 * (sluice_submit, sluice_end_step and sluice_wait_tensor with timeout 0 are fine). */

/* One line of log text without newline. On any thread of the process. */
typedef void (*sluice_log_fn)(void* user, sluice_log_level level, const char* text);
/* (P) The output of `tensor` is ready (SLUICE_OK), or the job has failed. Once per submission. */
typedef void (*sluice_tensor_done_fn)(void* user, uint32_t tensor, sluice_status status);
/* (P) No progress for stall_report_ms: `text` names tensors, ranks, and when each was last heard.
 * A report, not an error; repeated every stall_report_ms while it lasts. */
typedef void (*sluice_stall_fn)(void* user, const char* text);
/* Asked by blocked calls, on their own thread, every 100 ms at the latest. Non-zero: the call
 * returns SLUICE_INTERRUPTED. */
typedef int (*sluice_interrupted_fn)(void* user);

typedef struct sluice_options {
  size_t struct_size;
  /* Where the appliance is:
   *   udp://HOST[:PORT]                kernel sockets; HOST a name, an IPv4 or [IPv6] address
   *   vhost://HOST[:PORT]/PATH         HOST the appliance's IPv4 address, /PATH its vhost-user
   *                                    socket; needs the DPDK plug-in
   *   inproc://NAME                    an appliance inside this process, made by its first worker
   * PORT is 7700 when absent. Required. */
  const char* address;
  const char* job_name;      /* 1 to 64 bytes. Required. */
  const char* secret;        /* of the appliance; NULL or empty when it has none */
  const char* local_address; /* source IP address; NULL: chosen by the kernel (udp), or drawn from
                                169.254.0.0/16 (vhost) */
  uint64_t run_id;           /* of this launch: the same on every rank, another for every launch */
  uint32_t ordinal;          /* which job of this process: 0, or 1, 2 .. for further models */
  uint32_t rank;             /* below world_size */
  uint32_t world_size;       /* 1 to 1024. Required. */
  uint32_t mtu;              /* of the path to the appliance, bytes of an IP packet; default 1500 */
  uint32_t chunk_bytes;      /* gradient bytes per packet, a multiple of 64; 0: the most that mtu
                                carries. Must be the same on every rank. */
  int32_t averaging;         /* sluice_averaging; default SLUICE_AVERAGE_WEIGHT */
  int32_t allow_nil; /* non-zero (default): sluice_end_step may leave tensors out. Must be the
                        same on every rank. */
  uint32_t connect_timeout_ms; /* no answer from the appliance at join; default 4000 */
  uint32_t join_timeout_ms;    /* waiting for the other ranks; default 60000 */
  uint32_t silence_timeout_ms; /* a joined appliance that falls silent; default 4000 */
  uint32_t stall_report_ms;    /* default 5000 */
  int32_t log_level;           /* sluice_log_level up to which `log` is called; default info */
  void* user;                  /* for the callbacks */
  sluice_log_fn log;           /* or NULL */
  sluice_tensor_done_fn on_tensor_done; /* or NULL */
  sluice_stall_fn on_stall;             /* or NULL: logged as a warning */
  sluice_interrupted_fn interrupted;    /* or NULL */
} sluice_options;

/* A tensor of the job. Registration order, dtype and elem_count must be the same on every rank. */
typedef struct sluice_tensor {
  size_t struct_size;
  const char* name;    /* for messages; NULL: its index */
  uint64_t elem_count; /* at least 1 */
  int32_t dtype;       /* sluice_dtype */
  int32_t reserved;    /* 0 */
} sluice_tensor;

/* What is known about a finished tensor. */
typedef struct sluice_result {
  size_t struct_size;
  uint64_t weight;     /* total weight of the contributions in the output */
  uint64_t latency_ns; /* from submission to completion */
  uint32_t step;       /* that the output belongs to */
  int32_t absent;      /* non-zero: no rank contributed data; the output is untouched */
  int32_t non_finite;  /* non-zero: some element of the sum is NaN or infinite */
  int32_t reserved;
} sluice_result;

/* Counters since the join; they only grow, but for receive_credit_packets, chunk_bytes, shards. */
typedef struct sluice_stats {
  size_t struct_size;
  uint64_t packets_sent;
  uint64_t packets_received;
  uint64_t bytes_sent;     /* UDP payload */
  uint64_t bytes_received; /* UDP payload */
  uint64_t retransmissions;
  uint64_t probes;
  uint64_t results_pulled;
  uint64_t duplicate_results;
  uint64_t non_finite_results; /* packets of the average with a NaN or an infinity, see below */
  uint64_t nil_contributions;
  uint64_t invalid_packets; /* arrived but malformed, or of another job */
  uint64_t send_errors;     /* the operating system or the link refused a packet */
  uint64_t steps_done;
  uint64_t receive_credit_packets; /* results that the receive buffer can hold */
  uint64_t chunk_bytes;            /* in use */
  uint64_t shards;                 /* of the appliance */
  uint64_t non_finite_inputs;      /* those of non_finite_results to which this rank sent a NaN or
                                      an infinity: above 0 only on the ranks that are to blame */
} sluice_stats;

/* "0.1.0", the version of the library that is loaded. Never fails; static storage. */
SLUICE_API const char* sluice_version(void);

/* "refused", "peer lost", ...: the name of a status. Never fails; static storage. */
SLUICE_API const char* sluice_status_name(sluice_status status);

/* The cause of a failure. With a job that has failed: the job's own failure, for good. Otherwise
 * (or with NULL): the last call of the calling thread that failed; "" if none has. The text is
 * valid until the calling thread's next call of this library. Never fails. */
SLUICE_API const char* sluice_last_error(const sluice_job* job);

/* Fills in the defaults above. `options->struct_size` must be set before the call; fields beyond it
 * are not touched. Fails with SLUICE_INVALID_ARGUMENT on NULL or a size of no known version. */
SLUICE_API sluice_status sluice_options_init(sluice_options* options);

/* Where log lines go that belong to no job, and those of jobs joined later whose options have no
 * `log`. NULL: nowhere. The callback must stay callable until it is replaced and those jobs are
 * closed. */
SLUICE_API sluice_status sluice_set_log(sluice_log_fn log, void* user, sluice_log_level level);

/* Joins a job and waits until all world_size ranks have joined: blocks for at most
 * connect_timeout_ms + join_timeout_ms + 1 s. `tensors` are `count` structs in registration order
 * (at least one), all with the same struct_size.
 *
 * On success *job is the membership: a thread of its own now keeps it alive, whatever the caller
 * computes. On failure *job is NULL, nothing remains, and sluice_last_error(NULL) has the cause:
 * SLUICE_UNREACHABLE (nothing answers there), SLUICE_REFUSED (wrong secret, another layout or world
 * size, a rank that is taken, no memory), SLUICE_TIMED_OUT (ranks are missing: the text lists
 * them), SLUICE_NOT_FOUND, SLUICE_IO_ERROR, SLUICE_INVALID_ARGUMENT, SLUICE_INTERRUPTED. */
SLUICE_API sluice_status sluice_join(const sluice_options* options, const sluice_tensor* tensors,
                                     size_t count, sluice_job** job);

/* Contributes a tensor to its next step: the first submission of a tensor belongs to step 1, the
 * second to step 2, and so on; tensors may be submitted in any order. Returns at once.
 *
 * `input` and `output` are elem_count elements of the tensor's dtype in host memory, aligned for
 * it; they may be the same memory but must not overlap otherwise. `input` NULL means no data from
 * this rank (NIL; needs allow_nil): the output still receives the average of the others. Both
 * belong to the library until the tensor is done (sluice_wait_tensor has returned SLUICE_OK or the
 * job's failure, or on_tensor_done was called) or sluice_close has returned; the input must not
 * change meanwhile. `weight` counts samples; 0 is legal. `priority` 0 is the most urgent, 255 the
 * least; it decides the order on the wire and in the switch.
 *
 * Fails with SLUICE_INVALID_ARGUMENT (no such tensor, output NULL, priority above 255) and
 * SLUICE_BUSY (the tensor's previous submission is not done). */
SLUICE_API sluice_status sluice_submit(sluice_job* job, uint32_t tensor, const void* input,
                                       void* output, uint32_t weight, uint32_t priority);

/* Declares that this worker has submitted all that it will submit for the current step. Tensors
 * that were left out count as zero data from this rank (NIL); their results are not delivered here.
 * Returns at once. Needed only when tensors were left out: a step whose tensors have all been
 * submitted ends by itself, and one call after that does nothing. So either call it once every
 * step, or only in steps that leave tensors out.
 *
 * Fails with SLUICE_INVALID_ARGUMENT when tensors were left out and allow_nil is 0; the text names
 * them. */
SLUICE_API sluice_status sluice_end_step(sluice_job* job);

/* Waits until the last submission of `tensor` is done. Returns SLUICE_OK at once when it is
 * already, or when there was none. `result` may be NULL. Fails with SLUICE_TIMED_OUT and
 * SLUICE_INTERRUPTED (the submission goes on). After a timeout, but for timeout 0,
 * sluice_last_error() says who and what is missing; so do all calls that wait. */
SLUICE_API sluice_status sluice_wait_tensor(sluice_job* job, uint32_t tensor, int32_t timeout_ms,
                                            sluice_result* result);

/* Waits until all submissions are done and every step that this worker has ended is complete.
 * `*step` (unless NULL) is then the last complete step, 0 before the first.
 * Fails as sluice_wait_tensor does. */
SLUICE_API sluice_status sluice_wait_step(sluice_job* job, int32_t timeout_ms, uint32_t* step);

/* Copies `bytes` bytes at `buffer` from rank `root` to all ranks. All ranks must call broadcast and
 * barrier in the same order with the same root and size, or the job fails and both are named.
 * Any size above 0. Blocks. The library works on a copy of its own, so `buffer` is the caller's
 * whenever the call does not run; it is written only when SLUICE_OK is returned.
 * Collectives of one job run one after the other: a second one waits for the first within its
 * timeout, also for one that was given up by a timeout. Gradients may be in flight meanwhile.
 * Fails with SLUICE_TIMED_OUT, SLUICE_INTERRUPTED, SLUICE_INVALID_ARGUMENT, SLUICE_EXHAUSTED (no
 * memory for the copy). */
SLUICE_API sluice_status sluice_broadcast(sluice_job* job, uint32_t root, void* buffer,
                                          size_t bytes, int32_t timeout_ms);

/* Waits until all ranks have called it. Otherwise as sluice_broadcast. */
SLUICE_API sluice_status sluice_barrier(sluice_job* job, int32_t timeout_ms);

/* SLUICE_OK while the job works, SLUICE_CLOSED after this worker has left, else the job's failure.
 * Never blocks. */
SLUICE_API sluice_status sluice_job_status(sluice_job* job);

/* Leaves the job in an orderly way: this worker has contributed all that it will. Waits for at most
 * 1 s for the appliance to agree and returns SLUICE_OK in any case; later calls on the job return
 * SLUICE_CLOSED. Submissions that are not done are abandoned. */
SLUICE_API sluice_status sluice_leave(sluice_job* job);

/* Leaves the job because of an error on this side, so that the other ranks fail at once with this
 * rank's name instead of waiting. Otherwise as sluice_leave. */
SLUICE_API sluice_status sluice_abort(sluice_job* job);

/* Ends the membership (as sluice_leave when nothing is in flight, else as sluice_abort), stops the
 * job's thread and frees it. Blocks for at most 1 s. Afterwards no memory of the caller is touched
 * and `job` is invalid. NULL is ignored. In the child of a fork it frees nothing. Must not be
 * called from a callback: returns SLUICE_INVALID_ARGUMENT then. */
SLUICE_API sluice_status sluice_close(sluice_job* job);

/* Fills `stats` up to its struct_size. Works on a failed job too. Never blocks. */
SLUICE_API sluice_status sluice_stats_get(sluice_job* job, sluice_stats* stats);

/* Writes why the current step waits (tensors, ranks, when each was last heard) into `text` of
 * `capacity` bytes, cut to fit and ended by a zero byte; "" when nothing waits. Works on a failed
 * job too. Waits for the progress thread for at most 100 ms. */
SLUICE_API sluice_status sluice_describe_stall(sluice_job* job, char* text, size_t capacity);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_SLUICE_H_ */
