/* Sluice: sums gradients of many workers in a switch. The C interface of libsluice.
 *
 * A job is one training run; each of its processes is a worker with a rank 0 .. world_size - 1. A
 * worker joins a job at an appliance, submits each tensor once a step, and receives the average
 * over all ranks. A step is one synchronised backward pass, counted from 1. Other libraries and
 * languages should use this interface; C++ programs may prefer sluice.hpp, and Python has a package
 * of its own.
 *
 * Conventions, which hold for every function unless its own text says otherwise:
 *  - Every call returns a sluice_status. After a failure sluice_last_error() has one line of text
 *    with the cause, the values involved and the remedy. No C++ exception leaves a call.
 *  - Thread-safety: any thread may call any function at any time, concurrently, on the same job;
 *    only sluice_close() must be the last call on its job.
 *  - Blocking: a call that blocks says so and takes a timeout in milliseconds. SLUICE_FOREVER waits
 *    without limit, 0 does not wait. A blocked call asks options.callbacks.interrupted every 100 ms
 *    at the latest.
 *  - A job that has failed stays failed: every later call returns the same status and text at once,
 *    and only sluice_close() is of use. The library does not touch submitted memory after a call
 *    has returned the failure.
 *  - A failed call that is not the job's own failure (a bad argument, a timeout) changes nothing.
 *  - A struct that the caller passes starts with struct_size. The caller sets it to the size of the
 *    struct. The library refuses every other size with SLUICE_INVALID_ARGUMENT, because the program
 *    was compiled with another version's header.
 *  - Strings are UTF-8 and end with a zero byte. The library copies them during the call.
 *  - After fork() every job is inert in the child: calls return SLUICE_FORKED and touch nothing,
 *    and the child's copies of the sockets are closed. A child that wants to take part joins again.
 *  - A thread that is cancelled (pthread_cancel) leaves a waiting call within 0.1 s, as after an
 *    interruption; it completes any other call first.
 *  - The library writes no output unless the environment variable SLUICE_LOG is error, warn, info
 *    or debug (then to standard error), a log callback is set, or options.trace_dir asks for a
 *    trace.
 */
#ifndef SLUICE_SLUICE_H_
#define SLUICE_SLUICE_H_

#include <stddef.h>
#include <stdint.h>

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 3
#define SLUICE_VERSION_PATCH 0

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The outcome of a call. Numbers are stable. */
typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT = 1, /* the caller's value is wrong; the text names value and remedy */
  SLUICE_NOT_FOUND = 2,        /* a host name, a socket path, a plug-in or a step's report does
                                  not exist */
  SLUICE_REFUSED = 3,          /* the appliance refused; the text is its own, with both values */
  SLUICE_UNREACHABLE = 4,      /* nothing answers at the address, or it has stopped to answer */
  SLUICE_TIMED_OUT = 5,        /* the call's own timeout passed; what it waited for goes on. From
                                  sluice_join(): some ranks did not come, the text names them */
  SLUICE_PEER_LOST = 6,        /* another rank died, fell silent or left; the text names it. Only
                                  in synchronous jobs, or when no rank is left */
  SLUICE_EXHAUSTED = 7,        /* a limit would be exceeded; the text has the numbers */
  SLUICE_IO_ERROR = 8,         /* the operating system or DPDK reported an error */
  SLUICE_CLOSED = 9,           /* this worker has left the job */
  SLUICE_BUSY = 10,            /* the tensor's previous submission, or a collective, is not done */
  SLUICE_INTERRUPTED = 11, /* callbacks.interrupted ended the wait; what it waited for goes on */
  SLUICE_FORKED = 12,      /* the job belongs to the parent process */
  SLUICE_INTERNAL = 13,    /* a bug in this library; please report the text */
  SLUICE_BEHIND = 14       /* this rank has fallen out of the appliance's window, or has returned
                              to a running job: call sluice_resync() */
} sluice_status;

/* Element types. Sums accumulate in float32. */
typedef enum sluice_dtype {
  SLUICE_FLOAT32 = 0,
  SLUICE_FLOAT16 = 1,
  SLUICE_BFLOAT16 = 2
} sluice_dtype;

/* The format in which the elements of float32 tensors travel, both ways. The rounding error of a
 * gradient stays with its rank, one float per element (the residual), and is added to the next
 * gradient (error feedback): only non-finite values are lost. Averages are rounded without bias,
 * to the same bits for all ranks. 16 bits halve the bytes, 8 bits quarter them. */
typedef enum sluice_wire {
  SLUICE_WIRE_FLOAT32 = 0,  /* unchanged */
  SLUICE_WIRE_FLOAT16 = 1,  /* magnitudes above 65,504 become infinite, and are flagged so */
  SLUICE_WIRE_BFLOAT16 = 2, /* float32's range, 8 bits of precision */
  SLUICE_WIRE_INT8 = 4      /* one scale per packet: a power of two that maps the greatest
                               magnitude to at most 127. A NaN or infinity makes its packet NaN */
} sluice_wire;

/* Which elements of a float32 tensor are sent: those of the greatest magnitudes of gradient +
 * residual. The other elements stay with this rank as its residual, one float per element, and grow
 * until they are sent (error feedback): nothing is lost. Non-finite elements are always sent. */
typedef enum sluice_prune_rule {
  SLUICE_PRUNE_OFF = 0,        /* all elements */
  SLUICE_PRUNE_STATIC = 1,     /* of each tensor the greatest, exactly prune.fraction of them */
  SLUICE_PRUNE_SAMPLED = 2,    /* the same by a threshold from 1 % of the elements; exactly where
                                  the sample is off by more than a third */
  SLUICE_PRUNE_SIGMA = 3,      /* more than prune.sigmas standard deviations from zero */
  SLUICE_PRUNE_DYNAMIC = 4,    /* above a threshold: the mean of the magnitudes above the last
                                  threshold, taken three times a step, from zero */
  SLUICE_PRUNE_DYNAMIC_RAW = 5 /* the same, taken once a step from the last step's threshold, which
                                  soon is so high that nothing is sent. To reproduce published
                                  results; of no other use */
} sluice_prune_rule;

/* Where gradients are, and how they are copied between device and host memory. */
typedef enum sluice_memory {
  SLUICE_MEMORY_HOST = 0,
  SLUICE_MEMORY_DEVICE = 1,           /* of a CUDA device, copied in the fastest way that works */
  SLUICE_MEMORY_PINNED = 2,           /* by its copy engines, through page-locked host memory */
  SLUICE_MEMORY_PINNED_ZERO_COPY = 3, /* by kernels that write to page-locked host memory */
  SLUICE_MEMORY_GPUDIRECT = 4 /* read by the network card: refused, no transport supports it */
} sluice_memory;

/* What an output holds. The same on every rank, or the join is refused with both values; the
 * default is a value of its own. */
typedef enum sluice_averaging {
  /* By the policy: SLUICE_AVERAGE_WORLD where late gradients go into later steps
   * (SLUICE_LATE_REQUEUE), else SLUICE_AVERAGE_WEIGHT. */
  SLUICE_AVERAGE_DEFAULT = 0,
  /* Sum of the inputs / sum of the weights. An input is the sum over `weight` samples; with weight
   * 1 everywhere this is the mean of the inputs. */
  SLUICE_AVERAGE_WEIGHT = 1,
  /* SLUICE_AVERAGE_WEIGHT times the ranks in the sum / the live ranks: a step of k counts k/n, so a
   * training takes the learning rate that it has with all ranks. With weight 1 everywhere this is
   * the sum / n; with all ranks in the sum it has the bits of SLUICE_AVERAGE_WEIGHT. */
  SLUICE_AVERAGE_WORLD = 2,
  SLUICE_AVERAGE_SUM = 3 /* sum of the inputs */
} sluice_averaging;

/* How the appliance chooses k, the number of contributions that complete a step. */
typedef enum sluice_policy_kind {
  SLUICE_POLICY_DEFAULT = -1, /* by the appliance's configuration for this job */
  SLUICE_POLICY_SYNC = 0,     /* k = world_size */
  SLUICE_POLICY_FIXED = 1,    /* k as given */
  SLUICE_POLICY_SAINA = 2,    /* k grows when the signs of the global gradient keep flipping */
  SLUICE_POLICY_RAMP = 3,     /* k grows over planned_steps */
  SLUICE_POLICY_GOODPUT = 4   /* k of the most progress per second, from times and noise */
} sluice_policy_kind;

/* What happens to a gradient that is ready after its step is complete. */
typedef enum sluice_late_mode {
  SLUICE_LATE_DROP = 0,   /* it is lost, and counted */
  SLUICE_LATE_REQUEUE = 1 /* it is contributed, once, to the step that is open then */
} sluice_late_mode;

/* Which of the waiting packets is sent next. */
typedef enum sluice_schedule_kind {
  SLUICE_SCHEDULE_STRICT = 0,  /* of the most urgent tensor, decided anew for every packet */
  SLUICE_SCHEDULE_CREDIT = 1,  /* of the most urgent tensor, decided anew for every piece of a
                                  tensor; a piece is sent as a whole while few of them are in
                                  flight (ByteScheduler, 2019) */
  SLUICE_SCHEDULE_PROPHET = 2, /* of a block of tensors that can be sent before the next tensor is
                                  ready, as the first steps predict it (Prophet, 2021) */
  SLUICE_SCHEDULE_FIFO = 3     /* of the tensor that was submitted first */
} sluice_schedule_kind;

/* How pushes change a store's parameters. n is the number of members at that moment; with bound 0,
 * of the members that pushed in that iteration. The arithmetic is that of PyTorch's optimizers on a
 * CPU. */
typedef enum sluice_update {
  SLUICE_UPDATE_DELTA = 0, /* workers push differences of parameters: adds each, divided by n */
  SLUICE_UPDATE_SGD = 1,   /* workers push gradients. With bound 0 a step takes their mean; with a
                              greater bound each push / n is a step, without Nesterov and weight
                              decay */
  SLUICE_UPDATE_ADAM = 2   /* workers push gradients, whose mean a step takes; with bound 0 only */
} sluice_update;

/* Whether a worker's store continues a retained one, and whether it is retained itself. The
 * appliance retains a store without workers for limits.store_keep_s. The same on every rank. A
 * retained store of the job's name that is not the one asked for is discarded by SLUICE_STORE_ANEW
 * alone: every other join is refused, with both values. */
typedef enum sluice_keep {
  SLUICE_STORE_KEEP = 0, /* continues a retained store, or begins one; is retained */
  SLUICE_STORE_END = 1,  /* begins one, refused where one is retained; ends with its last worker */
  SLUICE_STORE_ANEW = 2, /* begins one in the place of a retained store; is retained */
  SLUICE_STORE_TAKE = 3  /* continues a retained store, refused where there is none */
} sluice_keep;

/* Which of the waiting requests to a store is sent next, separately for pushes and pulls. */
typedef enum sluice_requests {
  SLUICE_REQUESTS_STALEST = 0, /* the pull of the stalest layer, the push that lets a layer's clock
                                  advance; among equals the layer that forward needs first */
  SLUICE_REQUESTS_FIFO = 1,    /* in the order of the calls */
  SLUICE_REQUESTS_FILO = 2     /* the newest, but none older than two iterations waits for it */
} sluice_requests;

/* store.staleness_bound of an asynchronous store. */
#define SLUICE_NO_BOUND UINT32_MAX

/* options.rank over bcube://, where the digits in the address or SLUICE_BCUBE_DIGITS tell it. */
#define SLUICE_RANK_BY_DIGITS UINT32_MAX
/* options.rank of an elastic job, see sluice_join_operations(). */
#define SLUICE_RANK_ANY UINT32_MAX

typedef enum sluice_log_level {
  SLUICE_LOG_ERROR = 0,
  SLUICE_LOG_WARN = 1,
  SLUICE_LOG_INFO = 2,
  SLUICE_LOG_DEBUG = 3
} sluice_log_level;

#define SLUICE_FOREVER (-1)

/* One worker's membership of one job. Opaque; made by sluice_join, freed by sluice_close. */
typedef struct sluice_job sluice_job;

/* Callbacks get callbacks.user. Those marked (P) run on the job's progress thread: they must return
 * soon, because packets wait meanwhile, and must not call a function of this library that blocks
 * (sluice_submit, sluice_end_step and sluice_wait_tensor with timeout 0 are fine). */

/* One line of log text without newline. On any thread of the process. */
typedef void (*sluice_log_fn)(void* user, sluice_log_level level, const char* text);
/* (P) The output of `tensor` is ready (SLUICE_OK), or will never be: the job has failed, or this
 * rank has fallen behind (SLUICE_BEHIND). Once per submission. */
typedef void (*sluice_tensor_done_fn)(void* user, uint32_t tensor, sluice_status status);
/* (P) There was no progress for timeouts.stall_report_ms: `text` names tensors, ranks, and when
 * each was last heard; during sluice_join() the ranks that have not come. A report, not an error;
 * repeated every 10 s while the stall lasts. Also written to standard error where SLUICE_LOG asks
 * for warnings. */
typedef void (*sluice_stall_fn)(void* user, const char* text);
/* Asked by blocked calls, on their own thread, every 100 ms at the latest. Non-zero: the call
 * returns SLUICE_INTERRUPTED. */
typedef int (*sluice_interrupted_fn)(void* user);

/* ---- options of a join ----
 *
 * sluice_options holds what a worker joins with: sluice_options_init() writes the defaults, the
 * caller the rest. The structs before it are its groups. An int32_t that names an enumeration holds
 * one of its numbers; one that says "non-zero" is a Boolean. A field of schedule, prune or store
 * that the group's other fields do not read must keep its default, or the join fails with
 * SLUICE_INVALID_ARGUMENT and names the field. */

/* How the appliance chooses k, and what it does with late gradients. The effective policy must be
 * the same on every rank, or the join is refused with both values; sluice_get_policy() tells it.
 * Fields that the kind of policy does not read are ignored. */
typedef struct sluice_policy_options {
  int32_t kind; /* sluice_policy_kind; default SLUICE_POLICY_DEFAULT, which reads no other field */
  int32_t late; /* sluice_late_mode; default SLUICE_LATE_DROP */
  uint32_t k;   /* fixed: k; saina: the first k. 1 to world_size; default 1 */
  uint32_t sign_threshold_permille; /* saina: s_th in 1/1000; default 500 */
  uint32_t count_threshold;         /* saina: c_th; 0 stands for the current k; default 5 */
  uint32_t sign_stride;             /* saina: 1 compares every sign (default), 32 one sign in 32 */
  uint32_t round_steps;             /* saina: steps of a detection round; default 5 */
  uint32_t planned_steps;           /* ramp, which needs it: steps of the training */
  uint32_t max_staleness; /* requeue: a gradient that is more steps late is discarded; 0 (default):
                             no bound */
} sluice_policy_options;

/* Which packet a worker sends next. Ranks may differ in it. */
typedef struct sluice_schedule_options {
  int32_t kind; /* sluice_schedule_kind; default SLUICE_SCHEDULE_STRICT */
  /* credit: a tensor is sent in pieces of at most unit_bytes, and the next piece begins while fewer
   * than credit_bytes of payload are in flight. Both are rounded to whole packets, at least one. A
   * credit below the link's rate times its round trip leaves the link idle. */
  uint64_t unit_bytes;   /* above 0; default 1 MiB */
  uint64_t credit_bytes; /* at least unit_bytes; default 4 MiB */
} sluice_schedule_options;

/* Which elements of float32 tensors are sent. The same on every rank, or the join is refused with
 * both values. Tensors with fewer than min_elems elements, and tensors with SLUICE_TENSOR_EXACT or
 * SLUICE_TENSOR_DENSE, are sent whole. The policies saina, ramp and goodput refuse pruning, because
 * they read the signs or norms of whole gradients. */
typedef struct sluice_prune_options {
  int32_t rule;       /* sluice_prune_rule; default SLUICE_PRUNE_OFF */
  double fraction;    /* static, sampled: share of the elements, above 0, at most 1; default 0.01 */
  double sigmas;      /* sigma: standard deviations, above 0; default 3 */
  uint64_t min_elems; /* default 1024 */
  uint32_t warmup;    /* static, sampled: for so many steps each, first 1/4, then 1/16, 1/64, ... of
                         the elements are sent, until the share is `fraction`; default 0: none */
  /* Momentum correction, at least 0 and below 1: a rank prunes its velocity (momentum * the last
   * velocity + gradient) instead of its gradient, and the velocity of a sent element starts again
   * at 0 (Lin et al., Deep Gradient Compression, ICLR 2018). Averages then contain the momentum, of
   * every float32 tensor without SLUICE_TENSOR_EXACT: give the optimizer none. Default 0: off. */
  double momentum;
} sluice_prune_options;

/* A parameter store: see "a parameter store" below. All fields but `requests` must be the same on
 * every rank, or the join is refused with both values. A store has no policy, averaging or pruning,
 * and its tensors are float32 on the wire. */
typedef struct sluice_store_options {
  int32_t enabled;          /* non-zero: the job is a store; 0 (default): a job of sums */
  uint32_t staleness_bound; /* B: iteration t reads the iterations of all workers up to t - 1 - B.
                               0 (default): bulk-synchronous; SLUICE_NO_BOUND: asynchronous */
  int32_t update;           /* sluice_update; default SLUICE_UPDATE_DELTA */
  int32_t nesterov;         /* SGD: non-zero takes Nesterov's step */
  double momentum;          /* SGD */
  double dampening;         /* SGD */
  double weight_decay;      /* SGD, Adam: added to the gradient */
  double beta1;             /* Adam; default 0.9 */
  double beta2;             /* Adam; default 0.999 */
  double epsilon;           /* Adam; default 1e-8 */
  int32_t adam_lerp;        /* Adam: non-zero computes the first moment as PyTorch 2 does */
  int32_t keep;             /* sluice_keep; default SLUICE_STORE_KEEP */
  int32_t requests;         /* sluice_requests; default SLUICE_REQUESTS_STALEST */
} sluice_store_options;

/* Gradients in device memory. A memory other than the host's lets sluice_submit_device() be called.
 * It needs the plug-in libsluice_cuda.so and NVIDIA's driver: without them the join fails with
 * SLUICE_NOT_FOUND and says what to install. It costs page-locked host memory for one copy of all
 * tensors; of operations (sluice_operation.on_device) for the data of all that are under way at
 * once, each a power of two, which is kept for later ones until the job is closed.
 *
 * Where tensors are pruned or rounded, the device does both and keeps the residual, and only the
 * payload crosses the bus. This costs page-locked memory for two payloads, and device memory for
 * residual and payload. It does not work with the rules sampled and dynamic_raw, with
 * prune.momentum and over BCube: then the host prunes and rounds. The log names every way of
 * copying that was not taken, with its reason. */
typedef struct sluice_device_options {
  int32_t memory; /* sluice_memory; default SLUICE_MEMORY_HOST */
  int32_t index;  /* of the device, counted from 0; ignored with SLUICE_MEMORY_HOST */
} sluice_device_options;

/* 1 ms to one day each; restart_ms may be 0. */
typedef struct sluice_timeout_options {
  uint32_t connect_ms;      /* for the appliance's first answer to a join; default 4000 */
  uint32_t join_ms;         /* for the other ranks to join; default 60000 */
  uint32_t silence_ms;      /* for a sign of life of the joined appliance; default 4000 */
  uint32_t stall_report_ms; /* without progress until on_stall is called; default 5000 */
  /* For an appliance that is lost to come back, and for all ranks to join it; default 60000. Then
   * a job over udp:// goes on with the step or the operations that it was in, with the same bits,
   * and calls only wait; a store with the newest values that a rank has read, and each push counts
   * once. 0: it ends as silence_ms says. Above 0 the process keeps the newest results: as many
   * bytes as all gradients as they travel, and a copy of each result as it comes; of a store the
   * newest values and pushes. May differ from rank to rank; with 0 on one rank the job ends. */
  uint32_t restart_ms;
} sluice_timeout_options;

/* Functions that the library calls, each NULL or set. */
typedef struct sluice_callback_options {
  void* user; /* passed to each of them */
  sluice_log_fn log;
  sluice_tensor_done_fn on_tensor_done;
  sluice_stall_fn on_stall; /* NULL: a stall is logged as a warning */
  sluice_interrupted_fn interrupted;
  int32_t log_level; /* sluice_log_level up to which `log` is called; default SLUICE_LOG_INFO */
} sluice_callback_options;

typedef struct sluice_options {
  size_t struct_size;
  /* Where the appliance is. Required:
   *   udp://HOST[:PORT][,HOST...]      kernel sockets; HOST is a name, an IPv4 or [IPv6] address.
   *                                    A job of sums, a store, or a job of operations that is
   *                                    not elastic, moves to the next HOST, and after the
   *                                    last to the first, when its appliance is lost or drained
   *                                    (timeouts.restart_ms); all ranks give the same list
   *   vhost://HOST[:PORT]/PATH         HOST is the appliance's IPv4 address, /PATH its vhost-user
   *                                    socket. One process owns a socket, and its jobs may share
   *                                    it. Needs the DPDK plug-in
   *   inproc://NAME                    an appliance inside this process; its first worker makes it
   *   bcube://N,K[?...]                the switches of a BCube (the Python package's BCUBE.md)
   * PORT is 7700 when absent. */
  const char* address;
  const char* local_address; /* source IP address; NULL: the kernel chooses one (udp), or the
                                library draws one from 169.254.0.0/16 (vhost) */
  const char* job_name;      /* 1 to 64 bytes. Required. */
  const char* secret;        /* the appliance's; NULL or empty when it has none */
  uint64_t run_id;           /* of this launch: the same on every rank, another for every launch */
  uint32_t ordinal;          /* which job of this process: 0, or 1, 2, ... for further models */
  uint32_t rank;             /* below world_size, or SLUICE_RANK_BY_DIGITS, or SLUICE_RANK_ANY */
  uint32_t world_size;       /* 1 to 1024. Required, but 0 stands for n^k over bcube://n,k */
  uint32_t mtu;              /* of the path to the appliance, bytes of an IP packet; default 1500 */
  uint32_t chunk_bytes;      /* gradient bytes per packet, a multiple of 64, the same on every rank;
                                0 (default): the most that mtu allows */
  int32_t averaging;         /* sluice_averaging; default SLUICE_AVERAGE_DEFAULT */
  int32_t wire;              /* sluice_wire of float32 tensors, the same on every rank; default
                                SLUICE_WIRE_FLOAT32 */
  int32_t allow_nil; /* non-zero (default): sluice_end_step() may leave tensors out. The same
                        on every rank */
  /* Non-zero: the appliance adds in the order of ranks, so the bits of a sum depend on the inputs
   * and their ranks alone, never on time, loss or the appliance's shards. The same on every rank;
   * equal bits also need equal chunk_bytes and tensors. Costs the appliance memory for
   * world_size - 1 more inputs of a step: refused, with the numbers, where it has less, and for
   * policies with k < n. -1 (default): the environment variable SLUICE_REPRODUCIBLE decides (1 or
   * 0), else 0. The appliance's configuration may ask for it as well; 0 does not undo that. */
  int32_t reproducible;
  /* Folder for a Chrome trace of this rank, made when it is missing. The trace has the times at
   * which each tensor of each step was ready, queued, sent, complete at the appliance, received and
   * applied. Its file sluice-JOB-rankR.json opens in ui.perfetto.dev and chrome://tracing, has at
   * most 64 MiB, and replaces the file of an earlier run. "": no trace. NULL (default): the
   * environment variable SLUICE_TRACE decides. */
  const char* trace_dir;
  sluice_policy_options policy;
  sluice_schedule_options schedule;
  sluice_prune_options prune;
  sluice_store_options store;
  sluice_device_options device;
  sluice_timeout_options timeouts;
  sluice_callback_options callbacks;
} sluice_options;

/* The policy that a job runs, and what a straggler may rely on. */
typedef struct sluice_policy_info {
  size_t struct_size;
  sluice_policy_options policy; /* its kind is never SLUICE_POLICY_DEFAULT */
  uint32_t window_steps;   /* steps that the appliance keeps for pulling, the open one included */
  uint32_t resync_hold_ms; /* how long the window waits for a resync */
  int32_t tolerates_stragglers; /* non-zero: a step can be complete without some of the ranks */
  int32_t averaging; /* sluice_averaging of outputs by the job's option; never the default */
} sluice_policy_info;

/* Masks of ranks are 64-bit words: rank r is bit r % 64 of word r / 64. */
#define SLUICE_RANK_WORDS 16

/* A finished step as a whole. */
typedef struct sluice_report {
  size_t struct_size;
  uint32_t step;
  uint32_t k;      /* contributions that completed its chunks, the least of them. 0: in some chunk
                      all ranks had only late gradients to contribute, and none had any of it */
  uint64_t weight; /* the effective batch: total weight in the sum, the least of its chunks; 0
                      where k is 0 */
  int32_t counted; /* non-zero: this rank is in every chunk of it */
  uint32_t rank_words;                  /* words in use: world_size / 64, rounded up */
  uint64_t in_every[SLUICE_RANK_WORDS]; /* ranks that are in every chunk */
  uint64_t in_any[SLUICE_RANK_WORDS];   /* ranks that are in at least one */
  /* Of its first chunk with a contribution: the ranks in it, and the ranks that were eligible (the
   * live ranks, and those in it). Equal on all ranks; 0 where no chunk has a contribution. */
  uint32_t first_members;
  uint32_t first_may_count;
} sluice_report;

/* Another rank's state: see sluice_resync(). */
typedef struct sluice_state {
  size_t struct_size;
  const void* data; /* owned by the job */
  uint64_t bytes;
  uint32_t step; /* the last step that the state contains */
} sluice_state;

/* A tensor of the job. Registration order and every field must be the same on every rank, or the
 * join is refused and names the first that differs. */
typedef struct sluice_tensor {
  size_t struct_size;
  const char* name;    /* NULL: its index */
  uint64_t elem_count; /* at least 1 */
  int32_t dtype;       /* sluice_dtype */
  uint64_t flags;      /* SLUICE_TENSOR_... or 0 */
} sluice_tensor;
/* Neither rounded nor pruned, whatever options.wire and options.prune say: for tensors that are no
 * gradients. */
#define SLUICE_TENSOR_EXACT 1u
/* Not pruned, whatever options.prune says: for biases and scales of a normalization. */
#define SLUICE_TENSOR_DENSE 2u
/* Of a store: begins a layer, which has a clock of its own. The first tensor begins one in any
 * case; the other tensors belong to the layer of the tensor before them. Layers are counted from 0,
 * and should be registered in the order of forward: the first layers are sent first. */
#define SLUICE_TENSOR_LAYER 4u

/* A finished tensor. */
typedef struct sluice_result {
  size_t struct_size;
  uint64_t weight;     /* total weight of the contributions in the output */
  uint64_t latency_ns; /* from submission to completion */
  uint32_t step;       /* that the output belongs to */
  int32_t absent;      /* non-zero: no rank contributed data; the output is untouched. Where ranks
                          contributed to parts of the tensor alone, the other parts are zero */
  int32_t non_finite;  /* non-zero: some element of the sum is NaN or infinite */
} sluice_result;

/* Where this rank stands between its steps: see the loop below. */
typedef struct sluice_position {
  size_t struct_size;
  uint32_t next_step; /* that the next submission belongs to */
  /* Steps to catch up with before the next gradient: finished steps that this rank has not applied,
   * and one more when a late gradient of its own goes into the step that is open
   * (SLUICE_LATE_REQUEUE). 0 in a synchronous job. Exact, as far as packets have arrived, when no
   * submission is in flight. */
  uint32_t behind;
  /* Non-zero: this rank cannot take part before it has another rank's state: it fell further behind
   * than the window, or joined a job that was running. Until sluice_resync() has succeeded, calls
   * for tensors and steps return SLUICE_BEHIND. Collectives work, but a rank that has returned must
   * not repeat the collectives that the others made before. */
  int32_t must_resync;
  int32_t state_wanted_by; /* the rank that waits for this one's state; -1: none */
} sluice_position;

/* The clocks of a store's layer, as far as this worker has been told. */
typedef struct sluice_clocks {
  size_t struct_size;
  uint32_t pushed;   /* this worker's last iteration; a worker that joins begins at the next one */
  uint32_t held;     /* all iterations up to this one of all members are in the copy pulled last */
  uint32_t clock;    /* ... are in the store; a hint, the clock may have advanced */
  uint32_t laggards; /* members whose push the clock waits for; a hint */
  uint32_t parked;   /* pulls that wait for the clock; a hint */
  int32_t kept;      /* non-zero: this worker continues a retained store, so its parameters are not
                        those that sluice_initialise() gave */
} sluice_clocks;

/* Gradients that pruning has held back: see sluice_get_left_behind(). */
typedef struct sluice_left_behind {
  size_t struct_size;
  uint64_t elem_count; /* elements of residuals that are not zero */
  double norm;         /* the root of the sum of their squares */
} sluice_left_behind;

/* What the current step waits for. */
typedef struct sluice_stall {
  size_t struct_size;
  uint64_t stalled_ns;                 /* since the last progress; 0: nothing waits */
  char text[4096];                     /* tensors, ranks, when each was last heard; cut to fit */
  uint64_t missing[SLUICE_RANK_WORDS]; /* ranks, as far as an appliance has told */
} sluice_stall;

/* The part of a job's traffic that counters are of. */
typedef struct sluice_part {
  size_t struct_size;
  uint32_t thread; /* of a BCube: which k-th of the gradients */
  uint32_t level;  /* of a BCube: the level of port and switch */
} sluice_part;

/* Counters since the join; they only grow, but for five facts. sluice_counter_name() has their
 * names in this order, and sluice_counter_help() more about each. */
typedef struct sluice_counters {
  size_t struct_size;
  uint64_t packets_sent;
  uint64_t packets_received;
  uint64_t bytes_sent;     /* UDP payload */
  uint64_t bytes_received; /* UDP payload */
  uint64_t retransmissions;
  uint64_t probes;
  uint64_t results_pulled;
  uint64_t duplicate_results;
  uint64_t non_finite_results; /* packets of the average with a NaN or an infinity */
  uint64_t nil_contributions;
  uint64_t invalid_packets;   /* received but malformed, or of another job */
  uint64_t send_errors;       /* datagrams that the operating system refused */
  uint64_t steps_done;        /* the last finished step */
  uint64_t non_finite_inputs; /* those of non_finite_results to which this rank sent a NaN or an
                                 infinity: above 0 only on the ranks that sent it */
  /* Gradients by chunk, each of which is one packet. Every chunk that was submitted with data ends
   * as one of: delivered, requeued, discarded. In a synchronous job all are delivered. */
  uint64_t delivered_chunks; /* in the sum of their own step */
  uint64_t late_chunks;      /* not in the sum of their own step */
  uint64_t requeued_chunks;  /* late, and in the sum of a later step */
  uint64_t discarded_chunks; /* late and dropped or too stale, or nobody knows (SLUICE_BEHIND) */
  uint64_t cancelled_bytes;  /* of gradients that were not sent because the result arrived first */
  uint64_t resyncs;          /* states received from another rank */
  uint64_t receive_credit_packets;    /* results that the transport can buffer */
  uint64_t chunk_bytes;               /* gradient bytes per packet, in use */
  uint64_t shards;                    /* of the appliance */
  uint64_t segmented_packets;         /* of packets_sent, those that the kernel cut from a train */
  uint64_t coalesced_packets;         /* of packets_received, those that came in a train */
  uint64_t kept_chunks;               /* late chunks that went back into the residual */
  uint64_t suspended_ns;              /* that waits for a store's layers have blocked */
  uint64_t oldest_request_iterations; /* by which the oldest unsent push or pull of a store is
                                         behind the current iteration, now */
  uint64_t detours; /* over bcube://: times that another switch replaced this rank's switch */
  uint64_t detoured_lanes;     /* over bcube://: lanes that use such another switch now */
  uint64_t receive_drops;      /* datagrams, or trains of them, that found no buffer, because this
                                  process read too late. They are requested again, as lost */
  uint64_t appliance_restarts; /* times that the job went on after its appliance had come back */
} sluice_counters;

/* "MAJOR.MINOR.PATCH" of the library that is loaded. Never fails; static storage. */
SLUICE_API const char* sluice_version(void);

/* "refused", "peer lost", ...: the name of a status. Never fails; static storage. */
SLUICE_API const char* sluice_status_name(sluice_status status);

/* The cause of a failure. With a job that has failed: the job's own failure, for good. Otherwise
 * (or with NULL): that of the calling thread's last failed call; "" if none has failed. The text is
 * valid until the calling thread's next call of this library. Never fails. */
SLUICE_API const char* sluice_last_error(const sluice_job* job);

/* Fills in the defaults. `options->struct_size` must be set before the call. */
SLUICE_API sluice_status sluice_options_init(sluice_options* options);

/* The policy options as text, as files and the environment hold them. Name of the option at
 * `index`, counted from 0, which is the policy's kind; NULL beyond the last. Static storage. */
SLUICE_API const char* sluice_policy_option_name(size_t index);

/* Sets options->policy from text: `values` has a text ("saina", "0.5", "one-in-32") for each of the
 * first `count` names, or NULL where none is given. Without a kind nothing is set. Set
 * options->world_size before. Fails with SLUICE_INVALID_ARGUMENT and a text about the value alone
 * when a value is wrong, when the kind needs an option that is not given, and when it does not read
 * an option that is given; *wrong (unless NULL) is the option's index then. */
SLUICE_API sluice_status sluice_set_policy(sluice_options* options, const char* const* values,
                                           size_t count, size_t* wrong);

/* Writes the value of the option at `index` of a policy from sluice_get_policy() into `text` of
 * `capacity` bytes, cut to fit. Fails with SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_get_policy_text(const sluice_policy_info* info, size_t index,
                                                char* text, size_t capacity);

/* Sets the receiver of log lines that belong to no job, and of the lines of jobs joined later
 * without callbacks.log. NULL: none. The callback must stay callable until it is replaced and those
 * jobs are closed. */
SLUICE_API sluice_status sluice_set_log(sluice_log_fn log, void* user, sluice_log_level level);

/* Joins a job and waits until all world_size ranks have joined: blocks for at most
 * timeouts.connect_ms + timeouts.join_ms + 1 s, and while the appliance prepares the job's memory.
 * `tensors` are `count` structs (at least one), in registration order.
 *
 * On success *job is the membership: a thread of its own keeps it alive, whatever the caller
 * computes. On failure *job is NULL, nothing remains, and sluice_last_error(NULL) has the cause:
 * SLUICE_UNREACHABLE (nothing answers there), SLUICE_REFUSED (wrong secret, another layout or world
 * size, a rank that is taken, no memory), SLUICE_PEER_LOST (the run has ended: the text says by
 * whom), SLUICE_TIMED_OUT (ranks are missing: the text lists them), SLUICE_NOT_FOUND,
 * SLUICE_IO_ERROR, SLUICE_INVALID_ARGUMENT, SLUICE_INTERRUPTED. */
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
 * least; it decides the order on the wire (see options.schedule) and in the switch, holds for this
 * submission only, and may differ between steps and between ranks.
 *
 * Fails with SLUICE_INVALID_ARGUMENT (no such tensor, output NULL, priority above 255) and
 * SLUICE_BUSY (the tensor's previous submission is not done). */
SLUICE_API sluice_status sluice_submit(sluice_job* job, uint32_t tensor, const void* input,
                                       void* output, uint32_t weight, uint32_t priority);

/* The arguments of sluice_submit() and what device memory needs beside them. */
typedef struct sluice_submission {
  size_t struct_size;
  uint32_t tensor;
  uint32_t weight;
  uint32_t priority;
  int32_t catch_up;  /* non-zero: as sluice_catch_up(); input and weight are ignored */
  const void* input; /* like output, host memory or that of options.device: as the call says */
  void* output;
  void* stream; /* cudaStream_t; NULL: the default stream. Ignored for host memory */
} sluice_submission;

/* As sluice_submit(), for memory of options.device. The library reads `input` and writes `output`
 * after the work that `stream` has so far; neither call nor stream waits. Both belong to the
 * library until the tensor is done, which it is when its average has arrived in `output`: work that
 * any stream gets after a wait has returned, or after on_tensor_done, finds it there.
 *
 * Jobs of a device may mix this with sluice_submit(). In such a job sluice_end_step() takes effect
 * when all earlier submissions have left the device; where it has to be refused, the job fails with
 * its text.
 *
 * Fails as sluice_submit() does, with SLUICE_INVALID_ARGUMENT for a job whose options.device.memory
 * is SLUICE_MEMORY_HOST, and with SLUICE_IO_ERROR when the device cannot mark the stream's work. A
 * copy or kernel that fails later fails the job, for the other ranks at once, with SLUICE_IO_ERROR
 * and a text that has the tensor and the device's own words; no work of the device ever waits for
 * this library. */
SLUICE_API sluice_status sluice_submit_device(sluice_job* job, const sluice_submission* submission);

/* Submits `count` tensors in their order, each as sluice_submit() does, or as
 * sluice_submit_device() in a job whose options.device.memory is not SLUICE_MEMORY_HOST. A call for
 * all gradients of a bucket costs a fraction of one call a tensor. The structs are the caller's
 * again when the call returns.
 *
 * Fails as these do, at the first tensor that is refused: the tensors before it are submitted, the
 * tensors after it are not. */
SLUICE_API sluice_status sluice_submit_many(sluice_job* job, const sluice_submission* submissions,
                                            size_t count);

/* Writes a line for every sluice_memory with this device ("pinned: works, NVIDIA X, 50 GB/s") into
 * `text` of `capacity` bytes, cut to fit and ended by a zero byte. May start the device's driver,
 * which takes some seconds. */
SLUICE_API sluice_status sluice_describe_memory(int32_t device, char* text, size_t capacity);

/* Declares that this worker submits nothing more in the current step. Tensors that were left out
 * count as zero data from this rank (NIL); their results are not delivered here. Returns at once.
 * Needed only when tensors were left out: a step whose tensors have all been submitted ends by
 * itself, and one call after that does nothing. So either call it once every step, or only in steps
 * that leave tensors out.
 *
 * Fails with SLUICE_INVALID_ARGUMENT when tensors were left out and allow_nil is 0; the text names
 * them. */
SLUICE_API sluice_status sluice_end_step(sluice_job* job);

/* ---- stragglers: jobs in which a step can be complete without this rank ----
 *
 * All replicas stay bit-identical when every rank applies every step's average once and in order.
 * So a rank that is behind applies the steps that it missed before it computes the next gradient:
 *
 *   sluice_turn turn = {sizeof turn};
 *   while (sluice_next_turn(job, SLUICE_FOREVER, &turn) == SLUICE_OK) {
 *     switch (turn.kind) {
 *       case SLUICE_TURN_COMPUTE:  if (turn.step > last) return;
 *                                  ... compute, sluice_submit() every tensor ...
 *       case SLUICE_TURN_CATCH_UP: ... sluice_catch_up() every tensor ...
 *       case SLUICE_TURN_APPLY:    ... apply the averages, which the outputs have ...
 *       case SLUICE_TURN_SAVE:     ... sluice_send_state() ...
 *       case SLUICE_TURN_LOAD:     ... replace the replica by turn.data ...
 *     }
 *   }
 *
 * The functions below this one are its parts, for programs that write a loop of their own. */

/* Numbers are stable. */
typedef enum sluice_turn_kind {
  SLUICE_TURN_COMPUTE = 1,  /* compute the gradient of `step` and submit every tensor. SLUICE_BEHIND
                               from sluice_submit() may be ignored: the next turn handles it */
  SLUICE_TURN_CATCH_UP = 2, /* this rank computes no gradient for `step`: sluice_catch_up() for
                               every tensor, each with memory for its average */
  SLUICE_TURN_APPLY = 3,    /* the outputs of all tensors hold the averages of `step` */
  SLUICE_TURN_SAVE = 4,     /* another rank wants this replica, in which `step` was applied last:
                               sluice_send_state(). Also while this rank waits for its own step */
  SLUICE_TURN_LOAD = 5      /* replace this replica by another rank's, after `step` */
} sluice_turn_kind;

typedef struct sluice_turn {
  size_t struct_size;
  int32_t kind; /* sluice_turn_kind */
  uint32_t step;
  const void* data; /* SLUICE_TURN_LOAD: owned by the job, until the next such turn */
  uint64_t bytes;
} sluice_turn;

/* What this rank has to do next: it applies missed steps before it computes, receives another
 * rank's state when it needs one, and gives its own when one is wanted. Blocks while a submitted
 * step is not complete, or a state has not arrived. Fails as sluice_wait_step() and sluice_resync()
 * do (after SLUICE_TIMED_OUT and SLUICE_INTERRUPTED call it again), but never with SLUICE_BEHIND,
 * and with SLUICE_INVALID_ARGUMENT when a step that it returned was not submitted in full. One
 * thread a job. */
SLUICE_API sluice_status sluice_next_turn(sluice_job* job, int32_t timeout_ms, sluice_turn* turn);

/* Where this rank stands. Never blocks. */
SLUICE_API sluice_status sluice_get_position(sluice_job* job, sluice_position* position);

/* The policy that the job runs. Never blocks. */
SLUICE_API sluice_status sluice_get_policy(sluice_job* job, sluice_policy_info* info);

/* As sluice_submit() for the tensor's next step, but this rank computed no gradient for it:
 * `output` receives the step's average, and this rank adds only gradients that it has to requeue.
 * Waits for the step to finish if it has not. All tensors of one step should be either submitted or
 * caught up with; sluice_end_step() declares the rest. Returns at once; fails as sluice_submit()
 * does, and with SLUICE_INVALID_ARGUMENT where it would stop all others: in a synchronous job, and
 * in the first two steps of any. */
SLUICE_API sluice_status sluice_catch_up(sluice_job* job, uint32_t tensor, void* output);

/* The report of `step`, or with 0 of the newest step that has one: k, its ranks, the effective
 * batch. The job keeps those of the last 16 steps that this rank has applied itself (steps that
 * came as another rank's state have none); SLUICE_NOT_FOUND for others. Never blocks. */
SLUICE_API sluice_status sluice_get_report(sluice_job* job, uint32_t step, sluice_report* report);

/* Gets the state of another rank, which the appliance chooses: blocks until that rank has given it
 * with sluice_send_state() and all of it has arrived. Meanwhile the appliance lets the others go on
 * for a few steps and then makes them wait, for resync_hold_ms at most.
 *
 * On success `state->data` is what the other rank gave, valid until the next call of this function
 * or sluice_close(); the tensors' next step is state->step + 1, and sluice_position.behind counts
 * from there. Load the state and catch up without delay: the others wait until then. A gradient of
 * this rank that waits to be requeued is discarded and counted.
 *
 * Fails with SLUICE_TIMED_OUT and SLUICE_INTERRUPTED (the transfer goes on, a further call waits
 * for the same one), SLUICE_BUSY (submissions are in flight, or another thread is in this call),
 * SLUICE_INVALID_ARGUMENT (a synchronous job), SLUICE_EXHAUSTED (no memory for the state: the job
 * goes on). When no rank has a state to give, or the transfer takes longer than the window waits,
 * the job fails for this rank with SLUICE_REFUSED and a text that says so. */
SLUICE_API sluice_status sluice_resync(sluice_job* job, int32_t timeout_ms, sluice_state* state);

/* Gives the rank that wants it `bytes` bytes at `data`: all that a replica needs (parameters,
 * optimizer state, buffers) after `step` has been applied and before the next one is, in a format
 * that the application defines. `step` is the last step that the state contains, as
 * sluice_wait_step() or a result has told it. Tensors of the next step may be in flight as long as
 * none of it has been applied. Copies `data` and returns at once; the transfer goes on beside later
 * steps. Does nothing when no rank wants it any more. Fails with SLUICE_INVALID_ARGUMENT (NULL, 0
 * bytes, or a step that is not the last finished one: look again), SLUICE_BEHIND and
 * SLUICE_EXHAUSTED (no memory for the copy). */
SLUICE_API sluice_status sluice_send_state(sluice_job* job, const void* data, uint64_t bytes,
                                           uint32_t step);

/* ---- a parameter store: jobs with options.store.enabled ----
 *
 * The appliance keeps the parameters, layer by layer. In iteration t, counted from 1, a worker
 * pulls a layer, computes with it, and pushes its update; a fast worker goes on while the slowest
 * is at most staleness_bound iterations behind. One rank gives the initial values, usually rank 0:
 *
 *   for each layer:  sluice_initialise(job, layer, values, count);        // rank 0 alone
 *   for each layer:  sluice_pull(job, layer, copy, count);
 *   for (t = ...) {
 *     forward:   sluice_wait_pull(job, layer, SLUICE_FOREVER), compute with its copy
 *     backward:  sluice_wait_push(job, layer, ...), sluice_push(job, layer, delta, count, rate),
 *                sluice_pull(job, layer, copy, count)
 *   }
 *
 * A pulled copy contains, in each packet's worth of elements, whole pushes only: those of all
 * members up to t - 1 - staleness_bound, all of this worker's own, and maybe newer ones; with bound
 * 0 exactly those up to t - 1, the same bits for all members. The store does not wait for a worker
 * that has died or left; a worker that joins later reads first and begins at sluice_clocks.pushed +
 * 1. Pushes of a lost process stay in the store.
 *
 * The appliance retains a store without workers for limits.store_keep_s. Workers of this run or
 * another one, with the same job name, world size, layout and options, then continue it, each as it
 * comes, and sluice_clocks.kept is non-zero. A store refuses sluice_submit() and the calls that
 * belong to it; sluice_broadcast() and sluice_barrier() work.
 *
 * `values`, `deltas` and `copies` are one pointer for each tensor of the layer, in registration
 * order, to elem_count floats; `count` is their number. The library reads the pointers before the
 * call returns; the floats belong to it until the push, or the pull, is done. All of these fail
 * with SLUICE_INVALID_ARGUMENT (no such layer, another number of tensors, NULL, not a store). */

/* The layer's initial values. A store that has values already, as for workers that come later,
 * ignores these. Wait for it with sluice_wait_push(). Returns after a look at all values. Fails
 * with SLUICE_BUSY when the layer was pushed or pulled already, with SLUICE_INVALID_ARGUMENT when a
 * value is not finite. */
SLUICE_API sluice_status sluice_initialise(sluice_job* job, uint32_t layer,
                                           const float* const* values, size_t count);

/* Pushes the layer's part of this worker's next iteration: differences of parameters or a gradient,
 * by options.store.update. `rate` is the learning rate of SGD and Adam; with bound 0 that of the
 * iteration's first push counts, so give the same one. Returns after a look at all values; `deltas`
 * are read until the push is done. Fails with SLUICE_BUSY (the layer's last push or pull is under
 * way) and SLUICE_INVALID_ARGUMENT (the layer was not pulled, its copy is too old for the bound, or
 * a tensor, which is named, holds a NaN or an infinity: it would stay in the parameters). */
SLUICE_API sluice_status sluice_push(sluice_job* job, uint32_t layer, const float* const* deltas,
                                     size_t count, double rate);

/* Asks for the layer as the iteration after the last push may read it, that push included, which
 * may be under way. Returns at once; `copies` are written until the pull is done. Fails with
 * SLUICE_BUSY (the layer's last pull is under way). */
SLUICE_API sluice_status sluice_pull(sluice_job* job, uint32_t layer, float* const* copies,
                                     size_t count);

/* Wait until the store has counted the layer's last push, or the copies of its last pull have
 * arrived; SLUICE_OK at once when there was none. A pull waits for members that are further behind
 * than the bound. The library takes the order in which a program first waits for the layers' pulls
 * for that of forward, and sends first what forward needs first; before that it takes the order of
 * registration. Fail with SLUICE_TIMED_OUT and SLUICE_INTERRUPTED (push or pull goes on). */
SLUICE_API sluice_status sluice_wait_push(sluice_job* job, uint32_t layer, int32_t timeout_ms);
SLUICE_API sluice_status sluice_wait_pull(sluice_job* job, uint32_t layer, int32_t timeout_ms);

/* The layer's clocks. Never blocks. */
SLUICE_API sluice_status sluice_get_clocks(sluice_job* job, uint32_t layer, sluice_clocks* clocks);

/* ---- operations: jobs joined with sluice_join_operations() ----
 *
 * Such a job has no tensors and no steps. Its ranks make groups, any number of them overlapping,
 * and the members of a group call operations, which may have any length up to 2^40 bytes and need
 * no preparation:
 *
 *   sluice_join_operations(&options, &job);
 *   sluice_make_group(job, "dp", ranks, count, &group);
 *   sluice_all_reduce(group, gradient, gradient, elem_count, NULL, &ticket);
 *   sluice_wait(group, ticket, SLUICE_FOREVER, NULL);
 *
 * All members of a group call the same operations in the same order; the order across groups is
 * free. Operations in flight may end in any order: a small one does not wait for a big one, and a
 * reduce-scatter, which fills uplinks, runs beside an all-gather, which fills downlinks. Sums are
 * exact to the rounding of float32, and all members get the same bits; a sum of 16-bit elements is
 * rounded once.
 *
 * An operation that was called always ends, with one of
 *  - SLUICE_OK;
 *  - SLUICE_TIMED_OUT: a rank has given it up (timeout_ms, sluice_cancel()). The text names that
 *    rank, and those that had not called it. The group goes on: its next operation works;
 *  - SLUICE_INVALID_ARGUMENT: two members have called different operations. The text has both, with
 *    their ranks. The group is broken, and what a member calls once it knows ends so too;
 *  - SLUICE_PEER_LOST: a member has left or was lost, and an operation lacks it. The group is
 *    broken; groups without that rank go on;
 *  - SLUICE_REFUSED: the group could not be made; SLUICE_EXHAUSTED: the job's memory at the
 *    appliance has no room for its first operation of this kind;
 *  - the job's failure, or SLUICE_CLOSED.
 * After all but SLUICE_OK the output is unspecified.
 *
 * All-reduce, all-gather and barrier end alike for all members. Of the other kinds a member may
 * have had SLUICE_OK already when the operation fails for others, since its own part was over: a
 * reduce for all but its root, a reduce-scatter for the members whose part is complete. A broadcast
 * is over for its root when the appliance has the bytes. It ends alike as long as all members have
 * called the same operations before it; after a disagreement some have the root's bytes and some
 * fail. */

/* A group of a job's ranks. Belongs to its job, and is valid until sluice_close(). */
typedef struct sluice_group sluice_group;

typedef enum sluice_reduction {
  SLUICE_SUM = 0,
  SLUICE_MEAN = 1 /* the sum / the number of members */
} sluice_reduction;

/* (P) The operation is over, as the status says; both buffers are the caller's again. Once for each
 * operation that was called with it, at the latest when its job ends. It may run before the call
 * that began the operation has returned, and may call further operations. */
typedef void (*sluice_done_fn)(void* user, uint64_t ticket, sluice_status status);

/* How an operation is carried out. NULL in its place: the defaults. Members must agree on dtype,
 * wire and reduction. */
typedef struct sluice_operation {
  size_t struct_size;
  int32_t dtype;       /* sluice_dtype of what is summed; default SLUICE_FLOAT32. Else ignored */
  int32_t wire;        /* sluice_wire in which float32 that is summed travels, rounded to nearest;
                          default SLUICE_WIRE_FLOAT32. SLUICE_WIRE_INT8 is refused */
  int32_t reduction;   /* sluice_reduction; default SLUICE_SUM */
  uint32_t priority;   /* 0 the most urgent, 255 the least; default 128. May differ between ranks */
  int32_t timeout_ms;  /* then this rank gives it up, as by sluice_cancel(); default
                          SLUICE_FOREVER */
  sluice_done_fn done; /* default NULL */
  void* user;          /* passed to it */
  int32_t on_device;   /* non-zero: the buffers are in the memory of options.device. They are read
                          and written after the work that `stream` has so far; neither call nor
                          stream waits. The operation, and later ones of this rank in its group,
                          begin when the input is in host memory; it is over when the output is on
                          the device, for work that any stream gets afterwards. Default 0 */
  void* stream;        /* cudaStream_t; NULL (default): the default stream. Of on_device */
} sluice_operation;

/* Fills in the defaults. `operation->struct_size` must be set before the call. */
SLUICE_API sluice_status sluice_operation_init(sluice_operation* operation);

/* Joins a job of operations, otherwise as sluice_join(). Of the options all but averaging, wire,
 * allow_nil, trace_dir, policy, schedule, prune and store are used. Of these allow_nil and
 * trace_dir are ignored and the others must keep their defaults. With `reproducible` the appliance
 * adds in the order of a group's ranks; parts that come early take of the job's memory there, so
 * that fewer groups begin in it. Over udp:// the job waits timeouts.restart_ms for an appliance
 * that is lost, and operations go on with the same bits: see "What happens when the box dies" in
 * docs/training.md. No bcube:// address. The job takes sluice_broadcast() and sluice_barrier() of
 * all its ranks; calls for tensors and steps fail with SLUICE_INVALID_ARGUMENT.
 *
 * With rank SLUICE_RANK_ANY the job is elastic: it starts with its first process, and processes of
 * its run_id come and go, world_size of them at a time at most. Each gets a rank that no other
 * process has (sluice_get_rank()); ranks that are left are given out again. A process that dies
 * breaks the groups that it is in and nothing else. Such processes make groups of whom they know:
 * they tell each other their ranks elsewhere. sluice_broadcast() and sluice_barrier(), of all ranks
 * that there can be, fail with SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_join_operations(const sluice_options* options, sluice_job** job);

/* This process's rank: options.rank, or the one that an elastic job has given to it. Never blocks.
 * Fails with SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_get_rank(sluice_job* job, uint32_t* rank);

/* Makes a group of `count` ranks of the job, or takes part in the group that another rank has made:
 * members agree by `name`, of 1 to 64 bytes, and must give the same ranks. `ranks` ascend, and this
 * rank is one of them. Never blocks: operations may be called at once, and begin when the appliance
 * has answered. The same name and ranks again: the same group. At most 256 groups a job, which
 * share the job's memory at the appliance. Fails with SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_make_group(sluice_job* job, const char* name, const uint32_t* ranks,
                                           size_t count, sluice_group** group);

/* This rank calls no more operations in the group: later calls fail with SLUICE_CLOSED. Operations
 * that it has called go on; one that another member calls beyond them ends with SLUICE_PEER_LOST at
 * once. When all members have said so, the group's name and memory are free. Never blocks. Fails
 * with SLUICE_BUSY while an operation of this rank is open. */
SLUICE_API sluice_status sluice_leave_group(sluice_group* group);

/* The same in the middle of operations: those of this rank end at once with SLUICE_CLOSED, and the
 * group is broken for the others, whose operations that lack this rank end with SLUICE_PEER_LOST.
 * The rank stays in the job and its other groups. Never blocks. */
SLUICE_API sluice_status sluice_abort_group(sluice_group* group);

/* These begin an operation and return at once. *ticket, counted from 0 in each group, names it, in
 * error texts too; it may be NULL where `operation` has a callback. Buffers are host memory unless
 * operation->on_device says otherwise, aligned for their elements, and belong to the library until
 * the operation is over; inputs must not change meanwhile. Ranks are those of the job, parts are in
 * the order of the group's ranks. Fail with SLUICE_INVALID_ARGUMENT, and with SLUICE_BUSY when 256
 * operations of the group are under way. */

/* The sum of all inputs, to all. `input` may be `output`. */
SLUICE_API sluice_status sluice_all_reduce(sluice_group* group, const void* input, void* output,
                                           uint64_t elem_count, const sluice_operation* operation,
                                           uint64_t* ticket);
/* The same to `root` alone; elsewhere `output` may be NULL and is not written. */
SLUICE_API sluice_status sluice_reduce(sluice_group* group, uint32_t root, const void* input,
                                       void* output, uint64_t elem_count,
                                       const sluice_operation* operation, uint64_t* ticket);
/* Of the sum of all inputs a part of elem_count elements to each member: `input` has members *
 * elem_count. `output` may be this rank's part of `input`. */
SLUICE_API sluice_status sluice_reduce_scatter(sluice_group* group, const void* input, void* output,
                                               uint64_t elem_count,
                                               const sluice_operation* operation, uint64_t* ticket);
/* The part of each member, `bytes` bytes, to all: `output` has members * bytes. `input` may be this
 * rank's part of `output`. */
SLUICE_API sluice_status sluice_all_gather(sluice_group* group, const void* input, void* output,
                                           uint64_t bytes, const sluice_operation* operation,
                                           uint64_t* ticket);
/* `bytes` bytes at `buffer` from `root` to all. */
SLUICE_API sluice_status sluice_group_broadcast(sluice_group* group, uint32_t root, void* buffer,
                                                uint64_t bytes, const sluice_operation* operation,
                                                uint64_t* ticket);
/* Over once all members have called it. */
SLUICE_API sluice_status sluice_group_barrier(sluice_group* group,
                                              const sluice_operation* operation, uint64_t* ticket);

/* Waits until the operation is over: then *done (unless NULL) is not 0, and the status is the
 * operation's own, whoever asks and how often (of failures, of the group's newest 4,096). *done 0:
 * the call's own timeout has passed (SLUICE_TIMED_OUT: the text says who has not called it, and by
 * how many operations that rank is behind) or it was interrupted, and the operation goes on; or
 * there is no such ticket (SLUICE_INVALID_ARGUMENT). */
SLUICE_API sluice_status sluice_wait(sluice_group* group, uint64_t ticket, int32_t timeout_ms,
                                     int32_t* done);
/* As sluice_wait() with timeout 0, but SLUICE_OK with *done 0 while it goes on. Never blocks. */
SLUICE_API sluice_status sluice_test(sluice_group* group, uint64_t ticket, int32_t* done);

/* Gives the operation up for all members. It ends soon: completed, if every member had sent all
 * that it needs, else with SLUICE_TIMED_OUT. Nothing happens when it is over. Never blocks. */
SLUICE_API sluice_status sluice_cancel(sluice_group* group, uint64_t ticket);

/* ---- waiting ---- */

/* Waits until the last submission of `tensor` is done: SLUICE_OK at once when it is, or when there
 * was none. `result` may be NULL. Fails with SLUICE_TIMED_OUT and SLUICE_INTERRUPTED (the
 * submission goes on), and with SLUICE_BEHIND (the result is lost to this rank, parts of its output
 * are unspecified, and both buffers are the caller's again). After a timeout above 0
 * sluice_last_error() says who and what is missing; this holds for all calls that wait. */
SLUICE_API sluice_status sluice_wait_tensor(sluice_job* job, uint32_t tensor, int32_t timeout_ms,
                                            sluice_result* result);

/* Waits until the last submissions of the first `least` of `count` tensors are done. Then *done is
 * the number of leading tensors that are done, `least` to `count`: with least 1 a caller takes the
 * tensor that it needs and all that have come with it. Fails as sluice_wait_tensor() does for the
 * first `least`, and with SLUICE_INVALID_ARGUMENT where `least` is above `count`; a tensor behind
 * them that is lost is not counted. */
SLUICE_API sluice_status sluice_wait_tensors(sluice_job* job, const uint32_t* tensors, size_t count,
                                             size_t least, int32_t timeout_ms, size_t* done);

/* Waits until all submissions are done and every step that this worker has ended is complete: then
 * `*step` (unless NULL) is the last one, 0 before the first. Fails as sluice_wait_tensor does. */
SLUICE_API sluice_status sluice_wait_step(sluice_job* job, int32_t timeout_ms, uint32_t* step);

/* What outputs of `tensor` hold from its next submission on, a sluice_averaging that replaces
 * options.averaging for it; SLUICE_AVERAGE_DEFAULT restores options.averaging. Every rank must make
 * the same calls, which nobody checks. Never blocks. Fails with SLUICE_BUSY while the tensor is in
 * flight, with SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_set_averaging(sluice_job* job, uint32_t tensor, int32_t averaging);

/* The residual of a float32 tensor that is rounded or pruned (sluice_wire, sluice_prune_rule): the
 * part of this rank's gradients that is not delivered yet, one float per element. It is a part of a
 * checkpoint: read it after a step, set it before the first gradient after a restart; it begins as
 * zero. `values` holds elem_count floats. With prune.momentum every float32 tensor without
 * SLUICE_TENSOR_EXACT has one, and `values` twice as many floats: the velocity after the residual.
 * Never block, but for a residual on a device: until it is copied. Fail with SLUICE_BUSY while the
 * tensor is in flight, with SLUICE_INVALID_ARGUMENT (NULL, no such tensor, or a tensor without a
 * residual). */
SLUICE_API sluice_status sluice_get_residual(sluice_job* job, uint32_t tensor, float* values);
SLUICE_API sluice_status sluice_set_residual(sluice_job* job, uint32_t tensor, const float* values);
/* The state of a tensor's pruning in one number: its steps so far, which decide warm-up and
 * samples, and the last threshold. Keep it beside the residual, for sluice_set_pruning() with the
 * same rule after a restart; 0 at the start, and where nothing is pruned. Never block. Fail as
 * sluice_get_residual() does, and with SLUICE_INVALID_ARGUMENT for a number that cannot be one. */
SLUICE_API sluice_status sluice_get_pruning(sluice_job* job, uint32_t tensor, uint64_t* position);
SLUICE_API sluice_status sluice_set_pruning(sluice_job* job, uint32_t tensor, uint64_t position);
/* Multiplies all residuals by `factor`: the next gradients are larger by it, because the scale of
 * the loss has changed. Never blocks, but where residuals are on a device. Fails with SLUICE_BUSY
 * in the middle of a step, with SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_scale_residuals(sluice_job* job, double factor);

/* Sends pruned tensors whole from now on, with their residuals. Call it before the submissions of a
 * rank's last step. Never blocks. Fails with the job's failure. */
SLUICE_API sluice_status sluice_flush_residuals(sluice_job* job);

/* What would be lost if this rank ended now: the residuals of all pruned tensors, without
 * velocities. 0 in a job that does not prune. After sluice_flush_residuals() tensors that are also
 * rounded are left out: rounding always keeps something. A rank with something left takes one more
 * step after sluice_flush_residuals(), or saves the residuals. Where the log takes warnings
 * (callbacks.log, SLUICE_LOG) sluice_leave(), _finish() and _close() make this call themselves,
 * which takes as long, and log the outcome once. Takes some 0.1 s for 100 million elements. Never
 * blocks, but for residuals on a device: until they are copied. Fails with SLUICE_BUSY while a
 * pruned tensor is in flight, SLUICE_CLOSED after leaving, SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_get_left_behind(sluice_job* job, sluice_left_behind* left);

/* Tells the trace that the result of `tensor` was used now; without this call the trace has the
 * return of the first wait for it. Before the next submission. Never blocks. Fails with
 * SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_mark_applied(sluice_job* job, uint32_t tensor);

/* Copies `bytes` bytes, above 0, at `buffer` from rank `root` to all ranks. All ranks must call
 * broadcast and barrier in the same order with the same root and size, or the job fails and the
 * text names both. Blocks. The library works on a copy, so `buffer` is the caller's except during
 * the call; the call writes it only when it returns SLUICE_OK. A second collective waits for the
 * first within its timeout, also when the first call has timed out. Gradients may be in flight.
 * Fails with SLUICE_TIMED_OUT, _INTERRUPTED, _INVALID_ARGUMENT, _EXHAUSTED (no memory for the
 * copy), and on all ranks with SLUICE_PEER_LOST (the root is gone; the job and its next collective
 * work). */
SLUICE_API sluice_status sluice_broadcast(sluice_job* job, uint32_t root, void* buffer,
                                          size_t bytes, int32_t timeout_ms);

/* Waits until all ranks have called it. Otherwise as sluice_broadcast. */
SLUICE_API sluice_status sluice_barrier(sluice_job* job, int32_t timeout_ms);

/* SLUICE_OK while the job works, SLUICE_CLOSED after this worker has left, else the job's failure.
 * Never blocks. */
SLUICE_API sluice_status sluice_get_status(sluice_job* job);

/* Leaves the job in order: this worker has contributed all that it will. Waits for at most 1 s for
 * the appliance to agree, returns SLUICE_OK in any case; later calls on the job: SLUICE_CLOSED. In
 * the middle of a step or of a collective it is sluice_abort. A synchronous job fails with this
 * rank's name when another rank contributes to a step that this one has not contributed to. Call
 * sluice_finish where ranks are meant to end at different steps; it waits for up to the silence
 * timeout and 1 s, as long as the others wait for it. */
SLUICE_API sluice_status sluice_leave(sluice_job* job);
SLUICE_API sluice_status sluice_finish(sluice_job* job);

/* Leaves the job because of an error on this side, so that the other ranks fail at once with this
 * rank's name instead of waiting. Otherwise as sluice_leave. */
SLUICE_API sluice_status sluice_abort(sluice_job* job);

/* Ends a job of any kind for all its ranks at once: their calls fail with SLUICE_PEER_LOST and a
 * text that has this rank and `reason`, of which 256 bytes are used. Otherwise as sluice_leave. */
SLUICE_API sluice_status sluice_abort_with(sluice_job* job, const char* reason);

/* Ends the membership (as sluice_leave when nothing is in flight, else as sluice_abort), stops the
 * job's thread and frees it. Blocks for at most 1 s; a worker that sums for its neighbours (BCube,
 * mode plain) up to the silence timeout more, while they ask. After it the library touches no
 * memory of the caller, and `job` is invalid. NULL is ignored; a forked child frees nothing. In
 * callbacks: SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_close(sluice_job* job);

/* The job's counters. Works on a failed job too. Never blocks. */
SLUICE_API sluice_status sluice_get_counters(sluice_job* job, sluice_counters* counters);

/* As sluice_get_counters() for the part `index` of the job's traffic, counted from 0: an ordinary
 * job has one part; over bcube://n,k there are k * k, of each thread at each level, without the
 * messages between servers that are not gradients. Counters of the transport (send_errors,
 * segmented_packets, coalesced_packets, receive_drops) are known for the whole job only.
 * SLUICE_NOT_FOUND beyond the last part. Never blocks. */
SLUICE_API sluice_status sluice_get_part_counters(sluice_job* job, uint32_t index,
                                                  sluice_part* part, sluice_counters* counters);

/* Name of the counter at `index` of sluice_counters, counted from 0, and what it counts; NULL
 * beyond the last. Never fail; static storage. */
SLUICE_API const char* sluice_counter_name(size_t index);
SLUICE_API const char* sluice_counter_help(size_t index);

/* Why the current step waits. On a failed job: why it waited when it failed. Never blocks. */
SLUICE_API sluice_status sluice_get_stall(sluice_job* job, sluice_stall* stall);

/* Writes the state of the schedule into `text` of `capacity` bytes, several lines, cut to fit and
 * ended by a zero byte: with SLUICE_SCHEDULE_PROPHET the steps that it has found, when it expects
 * each tensor, and its blocks of tensors; of a store the order of requests. Never blocks. */
SLUICE_API sluice_status sluice_get_schedule_plan(sluice_job* job, char* text, size_t capacity);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_SLUICE_H_ */
