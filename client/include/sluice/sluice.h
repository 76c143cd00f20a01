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
 *  - A thread that is cancelled (pthread_cancel) leaves a call that waits within 0.1 s, as an
 *    interruption would end it; other calls it carries out first.
 *  - The library writes no output unless the environment variable SLUICE_LOG is error, warn, info
 *    or debug (then to standard error), a log callback is set, or a trace is asked for
 *    (options.trace_dir).
 */
#ifndef SLUICE_SLUICE_H_
#define SLUICE_SLUICE_H_

#include <stddef.h>
#include <stdint.h>

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 2
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
  SLUICE_NOT_FOUND = 2,        /* a host name, a socket path, a plug-in or a step's report does
                                  not exist */
  SLUICE_REFUSED = 3,          /* the appliance said no; the text is its own, with both values */
  SLUICE_UNREACHABLE = 4,      /* nothing answers at the address, or it has stopped to answer */
  SLUICE_TIMED_OUT = 5,        /* this call's own timeout passed; what it waited for goes on. From
                                  sluice_join(): some ranks did not come, the text names them */
  SLUICE_PEER_LOST = 6,        /* another rank died, fell silent or left; the text names it. Only
                                  in synchronous jobs, or when no rank is left */
  SLUICE_EXHAUSTED = 7,        /* a limit would be exceeded; the text has the numbers */
  SLUICE_IO_ERROR = 8,         /* the operating system or DPDK said no */
  SLUICE_CLOSED = 9,           /* this worker has left the job */
  SLUICE_BUSY = 10,            /* the tensor's previous submission, or a collective, is not done */
  SLUICE_INTERRUPTED = 11,     /* options.interrupted said so; what the call waited for goes on */
  SLUICE_FORKED = 12,          /* the job belongs to the parent process */
  SLUICE_INTERNAL = 13,        /* a bug in this library; please report the text */
  SLUICE_BEHIND = 14 /* this rank has fallen out of the appliance's window, or has returned
                        to a running job: call sluice_resync() */
} sluice_status;

/* Element types. Sums accumulate in float32. */
typedef enum sluice_dtype {
  SLUICE_FLOAT32 = 0,
  SLUICE_FLOAT16 = 1,
  SLUICE_BFLOAT16 = 2
} sluice_dtype;

/* How the elements of float32 tensors travel, both ways. What rounding loses on the way to the
 * appliance stays with this rank, a float an element, and leaves with the next gradient (error
 * feedback): nothing is lost but what is not finite. Averages are rounded without bias, alike for
 * all ranks. Half the bytes, half, a quarter. */
typedef enum sluice_wire {
  SLUICE_WIRE_FLOAT32 = 0,  /* as it is */
  SLUICE_WIRE_FLOAT16 = 1,  /* what is beyond 65,504 becomes infinite, and is flagged so */
  SLUICE_WIRE_BFLOAT16 = 2, /* float32's range, 8 bits of precision */
  SLUICE_WIRE_INT8 = 4      /* with a scale a packet: a power of two that takes the greatest
                               magnitude to at most 127. One NaN or infinity makes its packet NaN */
} sluice_wire;

/* Which elements of a float32 tensor leave: those of the greatest magnitudes, of gradient and
 * residual together. The others stay with this rank, a float an element, and grow until they leave
 * (error feedback): nothing is lost. What is not finite always leaves. */
typedef enum sluice_prune_rule {
  SLUICE_PRUNE_OFF = 0,        /* all of them */
  SLUICE_PRUNE_STATIC = 1,     /* of each tensor the greatest, prune_fraction of them exactly */
  SLUICE_PRUNE_SAMPLED = 2,    /* likewise as 1 % of the elements say; exactly where that is off by
                                  more than a third */
  SLUICE_PRUNE_SIGMA = 3,      /* more than prune_sigmas standard deviations from zero */
  SLUICE_PRUNE_DYNAMIC = 4,    /* above the mean of the magnitudes above the last threshold, taken
                                  three times a step from zero */
  SLUICE_PRUNE_DYNAMIC_RAW = 5 /* likewise, taken once a step from the last step's threshold: soon
                                  nothing leaves any more. To reproduce that; of no other use */
} sluice_prune_rule;

/* Where gradients are, and how they get from a device's memory to the host's and back. */
typedef enum sluice_memory {
  SLUICE_MEMORY_HOST = 0,
  SLUICE_MEMORY_DEVICE = 1,           /* a CUDA device's; in the best way that works */
  SLUICE_MEMORY_PINNED = 2,           /* by its copy engines, through page-locked host memory */
  SLUICE_MEMORY_PINNED_ZERO_COPY = 3, /* by kernels that write to such memory */
  SLUICE_MEMORY_GPUDIRECT = 4         /* read by the network card: refused, no transport has one */
} sluice_memory;

/* What an output holds. The same on every rank, or the join is refused with both values; the
 * default is a value of its own. */
typedef enum sluice_averaging {
  /* What suits the policy: SLUICE_AVERAGE_WORLD where late gradients go into later steps
   * (SLUICE_LATE_REQUEUE), else SLUICE_AVERAGE_WEIGHT. */
  SLUICE_AVERAGE_DEFAULT = 0,
  /* Sum of the inputs / sum of the weights. An input is the sum over `weight` samples; with weight
   * 1 everywhere this is the mean of the inputs. */
  SLUICE_AVERAGE_WEIGHT = 1,
  /* That, times the ranks in the sum / the ranks that it could have had (the live ones): a step of
   * k counts k/n, so a training takes the learning rate that it has with all ranks. With weight 1
   * everywhere this is the sum / n; with all ranks in, the bits of SLUICE_AVERAGE_WEIGHT. */
  SLUICE_AVERAGE_WORLD = 2,
  SLUICE_AVERAGE_SUM = 3 /* sum of the inputs */
} sluice_averaging;

/* How the appliance chooses k, the number of contributions that complete a step. */
typedef enum sluice_policy_kind {
  SLUICE_POLICY_DEFAULT = -1, /* whatever the appliance's configuration says for this job */
  SLUICE_POLICY_SYNC = 0,     /* k = world_size */
  SLUICE_POLICY_FIXED = 1,    /* k as given */
  SLUICE_POLICY_SAINA = 2,    /* k grows when the signs of the global gradient keep flipping */
  SLUICE_POLICY_RAMP = 3,     /* k grows over planned_steps */
  SLUICE_POLICY_GOODPUT = 4   /* k of the best progress per second, from times and noise */
} sluice_policy_kind;

/* What becomes of a gradient that is ready after its step is complete. */
typedef enum sluice_late_mode {
  SLUICE_LATE_DROP = 0,   /* it is lost, and counted */
  SLUICE_LATE_REQUEUE = 1 /* it is contributed, once, to the step that is open then */
} sluice_late_mode;

/* Which of the waiting packets leaves next. The ranks of a job may differ in it. */
typedef enum sluice_schedule_kind {
  SLUICE_SCHEDULE_STRICT = 0,  /* of the most urgent tensor, decided anew for every packet */
  SLUICE_SCHEDULE_CREDIT = 1,  /* likewise, but for pieces of a tensor, each sent as a whole while
                                  few of them are in flight (ByteScheduler, 2019) */
  SLUICE_SCHEDULE_PROPHET = 2, /* blocks of tensors that fit before the next one will be ready, as
                                  the first steps have shown (Prophet, 2021) */
  SLUICE_SCHEDULE_FIFO = 3     /* of the tensor that was submitted first */
} sluice_schedule_kind;

/* What a job is for. */
typedef enum sluice_job_kind {
  SLUICE_JOB_SUMS = 0, /* tensors are summed, step by step */
  SLUICE_JOB_STORE = 1 /* the appliance keeps parameters: see "a parameter store" below */
} sluice_job_kind;

/* How a store's parameters follow from what is pushed. n are the members of that moment; with bound
 * 0 those that pushed that iteration. The arithmetic is that of PyTorch's optimizers on a CPU. */
typedef enum sluice_update {
  SLUICE_UPDATE_DELTA = 0, /* workers push differences of parameters: adds each, divided by n */
  SLUICE_UPDATE_SGD = 1,   /* workers push gradients: of their mean with bound 0; with a greater one
                              of each gradient / n, without Nesterov and weight decay */
  SLUICE_UPDATE_ADAM = 2   /* likewise; with bound 0 only */
} sluice_update;

/* What a worker wants of a store that has outlived its workers, for which the appliance keeps the
 * values for limits.store_keep_s, and of its own store. The same on every rank. A store that is
 * kept under the job's name and is not the one asked for is never discarded but by
 * SLUICE_STORE_ANEW: the join is refused, with both values. */
typedef enum sluice_keep {
  SLUICE_STORE_KEEP = 0, /* goes on with the one that is kept; outlives its workers */
  SLUICE_STORE_END = 1,  /* begins anew, refused where one is kept; ends with its last worker */
  SLUICE_STORE_ANEW = 2, /* begins anew, in the place of one that is kept; outlives its workers */
  SLUICE_STORE_TAKE = 3  /* goes on with the one that is kept; refused where there is none */
} sluice_keep;

/* Which of the waiting requests to a store leaves next, of pushes and of pulls. The ranks of a job
 * may differ in it. */
typedef enum sluice_requests {
  SLUICE_REQUESTS_STALEST = 0, /* pulls of the stalest layer, pushes that let a layer's clock move;
                                  of equal ones what forward needs first */
  SLUICE_REQUESTS_FIFO = 1,    /* in the order of the calls */
  SLUICE_REQUESTS_FILO = 2     /* the newest, but none older than two iterations waits for it */
} sluice_requests;

/* staleness_bound of an asynchronous store. */
#define SLUICE_NO_BOUND UINT32_MAX

/* options.rank over bcube://, where the digits of the address or of SLUICE_BCUBE_DIGITS say it. */
#define SLUICE_RANK_BY_DIGITS UINT32_MAX

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
/* (P) The output of `tensor` is ready (SLUICE_OK), or will not be: the job has failed, or this rank
 * has fallen behind (SLUICE_BEHIND). Once per submission. */
typedef void (*sluice_tensor_done_fn)(void* user, uint32_t tensor, sluice_status status);
/* (P) No progress for stall_report_ms: `text` names tensors, ranks, and when each was last heard;
 * during sluice_join() the ranks that have not come. A report, not an error; repeated every 10 s
 * while it lasts. Written to standard error too where SLUICE_LOG asks for warnings. */
typedef void (*sluice_stall_fn)(void* user, const char* text);
/* Asked by blocked calls, on their own thread, every 100 ms at the latest. Non-zero: the call
 * returns SLUICE_INTERRUPTED. */
typedef int (*sluice_interrupted_fn)(void* user);

typedef struct sluice_options {
  size_t struct_size;
  /* Where the appliance is:
   *   udp://HOST[:PORT]                kernel sockets; HOST a name, an IPv4 or [IPv6] address
   *   vhost://HOST[:PORT]/PATH         HOST the appliance's IPv4 address, /PATH its vhost-user
   *                                    socket, which is one process's and may be shared by its
   *                                    jobs; needs the DPDK plug-in
   *   inproc://NAME                    an appliance inside this process, made by its first worker
   * PORT is 7700 when absent. Required. */
  const char* address;
  const char* job_name;      /* 1 to 64 bytes. Required. */
  const char* secret;        /* of the appliance; NULL or empty when it has none */
  const char* local_address; /* source IP address; NULL: chosen by the kernel (udp), or drawn from
                                169.254.0.0/16 (vhost) */
  uint64_t run_id;           /* of this launch: the same on every rank, another for every launch */
  uint32_t ordinal;          /* which job of this process: 0, or 1, 2 .. for further models */
  uint32_t rank;             /* below world_size, or SLUICE_RANK_BY_DIGITS */
  uint32_t world_size;       /* 1 to 1024. Required, but over bcube://n,k 0 says n^k. */
  uint32_t mtu;              /* of the path to the appliance, bytes of an IP packet; default 1500 */
  uint32_t chunk_bytes;      /* gradient bytes per packet, a multiple of 64; 0: the most that mtu
                                carries. Must be the same on every rank. */
  int32_t averaging;         /* sluice_averaging; default SLUICE_AVERAGE_DEFAULT */
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
  /* The policy. With SLUICE_POLICY_DEFAULT (the default) the appliance's configuration decides and
   * the other fields are ignored. The effective policy must be the same on every rank, or the join
   * is refused with both values; sluice_get_policy() tells it. */
  int32_t policy;                   /* sluice_policy_kind */
  int32_t late;                     /* sluice_late_mode; default SLUICE_LATE_DROP */
  uint32_t k;                       /* fixed: k; saina: k0, that it starts with. 1 to world_size */
  uint32_t sign_threshold_permille; /* saina: s_th in 1/1000; default 500 */
  uint32_t count_threshold;         /* saina: c_th, 0: as many as k is; default 5 */
  uint32_t sign_stride;             /* saina: 1 looks at every sign (default), 32 at one in 32 */
  uint32_t round_steps;             /* saina: length of its detection round, steps; default 5 */
  uint32_t planned_steps;           /* ramp: length of the training, steps; required for it */
  uint32_t max_staleness;           /* requeue: a gradient that is more steps late than this is
                                       discarded; 0 (default): no bound */
  /* Folder for a Chrome trace of this rank, made when it is missing: when each tensor of each step
   * was ready, queued, sent, complete at the appliance, back, and applied. Its file
   * sluice-JOB-rankR.json opens in ui.perfetto.dev and chrome://tracing, holds 64 MiB at most, and
   * replaces that of an earlier run. "": no trace. NULL (default): what the environment variable
   * SLUICE_TRACE says. */
  const char* trace_dir;
  int32_t schedule; /* sluice_schedule_kind; default SLUICE_SCHEDULE_STRICT */
  /* Non-zero: sums are taken in the order of ranks, so their bits depend on the inputs and on who
   * gave them alone, never on time, loss or the appliance's shards. Costs the appliance memory for
   * world_size - 1 more inputs of a step; refused, with the numbers, where it has less, and for
   * policies of k < n. Must be the same on every rank; the same bits again need the same
   * chunk_bytes and tensors too. Default -1: what SLUICE_REPRODUCIBLE says (1 or 0), else 0. The
   * appliance's configuration may ask for it under the job's name as well; 0 does not undo that. */
  int32_t reproducible;
  /* sluice_wire of float32 tensors; default SLUICE_WIRE_FLOAT32. Must be the same on every rank. */
  int32_t wire;
  /* Pruning; the same on every rank, or the join is refused with both values. Tensors of fewer
   * elements than prune_min_elems (default 1024) and those of SLUICE_TENSOR_EXACT or _DENSE are
   * left whole. Refused with the policies saina, ramp and goodput, which read the signs or norms of
   * whole gradients. */
  int32_t prune;         /* sluice_prune_rule; default SLUICE_PRUNE_OFF */
  double prune_fraction; /* static, sampled: above 0, at most 1; default 0.01 */
  double prune_sigmas;   /* sigma: above 0; default 3 */
  uint64_t prune_min_elems;
  uint32_t prune_warmup; /* static, sampled: for so many steps each 1/4, 1/16, 1/64 ... of the
                            elements leave, until that is prune_fraction; default 0: none */
  /* Momentum correction: above 0 and below 1, what is pruned is not the gradient but this rank's
   * velocity, prune_momentum * the last one + gradient, which starts anew, at 0, where it leaves
   * (Lin et al., Deep Gradient Compression, ICLR 2018). Averages then hold the momentum, of every
   * float32 tensor that is not SLUICE_TENSOR_EXACT: give the optimizer none. Default 0: none. */
  double prune_momentum;
  /* sluice_job_kind; default SLUICE_JOB_SUMS. The following are of a store; all but `requests` are
   * the same on every rank, or the join is refused with both values. A store has no policy, no
   * averaging, no pruning and float32 alone. */
  int32_t kind;
  uint32_t staleness_bound; /* B: iteration t reads what holds everybody's iterations up to
                               t - 1 - B. 0 (default): bulk-synchronous; SLUICE_NO_BOUND */
  int32_t update;           /* sluice_update; default SLUICE_UPDATE_DELTA */
  int32_t nesterov;         /* SGD: non-zero takes Nesterov's step */
  double momentum;          /* SGD */
  double dampening;         /* SGD */
  double weight_decay;      /* SGD, Adam: added to the gradient */
  double beta1;             /* Adam; default 0.9 */
  double beta2;             /* Adam; default 0.999 */
  double epsilon;           /* Adam; default 1e-8 */
  int32_t adam_lerp;        /* Adam: non-zero computes the first moment as PyTorch 2 does */
  /* sluice_memory; default SLUICE_MEMORY_HOST. Others let sluice_submit_device() be called, and
   * cost page-locked host memory for one copy of all tensors. What is pruned or rounded is so on
   * the device, where its residual is, and crosses the bus as it travels; it costs page-locked
   * memory for two payloads, and on the device for residual and payload. Not so with the rules
   * 'sampled' and 'dynamic_raw', prune_momentum and over BCube: the log has the reason. They need
   * the plug-in libsluice_cuda.so and NVIDIA's driver: without them the join fails with
   * SLUICE_NOT_FOUND and says what to install. The log has every way that was not taken, with its
   * reason. */
  int32_t memory;
  int32_t device;   /* with another memory than the host's: the device, counted from 0 */
  int32_t keep;     /* sluice_keep, of a store; default SLUICE_STORE_KEEP */
  int32_t requests; /* sluice_requests, of a store; default SLUICE_REQUESTS_STALEST */
  /* SLUICE_SCHEDULE_CREDIT, which alone may have others than the defaults: most bytes of a piece
   * that is sent as a whole, above 0, and the next piece begins while less than credit_bytes of
   * payload are in flight. Both count in whole packets, at least one. A credit below the link's
   * rate times its round trip leaves the link idle. */
  uint64_t unit_bytes;   /* default 1 MiB */
  uint64_t credit_bytes; /* at least unit_bytes; default 4 MiB */
} sluice_options;

/* The policy that a job runs, and what a straggler may count on. */
typedef struct sluice_policy_info {
  size_t struct_size;
  int32_t policy; /* sluice_policy_kind, never SLUICE_POLICY_DEFAULT */
  int32_t late;   /* sluice_late_mode */
  uint32_t k;     /* this and the next six as in sluice_options */
  uint32_t sign_threshold_permille;
  uint32_t count_threshold;
  uint32_t sign_stride;
  uint32_t round_steps;
  uint32_t planned_steps;
  uint32_t max_staleness;
  uint32_t window_steps; /* finished steps and the open one that the appliance keeps for pulling */
  uint32_t resync_hold_ms;      /* how long the window waits for a resync */
  int32_t tolerates_stragglers; /* non-zero: a step can be complete without some of the ranks */
  int32_t averaging; /* sluice_averaging that outputs hold by the job's option, never the default */
} sluice_policy_info;

/* Masks of ranks are 64-bit words: rank r is bit r % 64 of word r / 64. */
#define SLUICE_RANK_WORDS 16

/* What is known about a finished step as a whole. */
typedef struct sluice_report {
  size_t struct_size;
  uint32_t step;
  uint32_t k;      /* that its chunks were summed with; the least of them. 0: all ranks had late
                      gradients to give to the step, and none of them had any of some chunk */
  uint64_t weight; /* the effective batch: total weight in the sum; the least of its chunks, so 0
                      in such a step too */
  int32_t counted; /* non-zero: this rank is in every chunk of it */
  uint32_t rank_words;                  /* words in use: world_size / 64, rounded up */
  uint64_t in_every[SLUICE_RANK_WORDS]; /* ranks that are in every chunk */
  uint64_t in_any[SLUICE_RANK_WORDS];   /* ranks that are in at least one */
  /* Ranks in its first chunk that has any, and ranks that could be in that: the live ones, and
   * those that are. Equal on all ranks; 0 where no chunk has any. */
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
/* Travels as it is, whatever options.wire and .prune say: what is no gradient. */
#define SLUICE_TENSOR_EXACT 1u
/* Travels whole, whatever options.prune says: biases, scales of a normalization. */
#define SLUICE_TENSOR_DENSE 2u
/* Of a store: begins a layer, which has a clock of its own. The first tensor does in any case; the
 * others belong to the layer of the tensor before them. Layers are counted from 0, and should stand
 * in the order in which they are read: the first ones go first. */
#define SLUICE_TENSOR_LAYER 4u

/* What is known about a finished tensor. */
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
  /* Steps to catch up with before the next gradient: finished ones that this rank has not applied,
   * and one more when a late gradient of its own goes into the step that is open
   * (SLUICE_LATE_REQUEUE). 0 in a synchronous job. Exact when no submission is in flight, as far as
   * packets have told. */
  uint32_t behind;
  /* Non-zero: this rank cannot take part before it has another rank's state: it fell further behind
   * than the window, or joined a job that was running. Until sluice_resync() has succeeded, calls
   * for tensors and steps return SLUICE_BEHIND; collectives work, but a rank that has returned must
   * not repeat those that the others made before. */
  int32_t must_resync;
  int32_t state_wanted_by; /* the rank that waits for this one's state; -1: nobody does */
} sluice_position;

/* The clocks of a store's layer, as far as this worker has heard. */
typedef struct sluice_clocks {
  size_t struct_size;
  uint32_t pushed;   /* this worker's last iteration; it joins at the one after this */
  uint32_t held;     /* all iterations up to this one of everybody are in the copy pulled last */
  uint32_t clock;    /* ... are in the store; a hint, it may have moved on */
  uint32_t at_clock; /* members whose push it waits for to move on; likewise */
  uint32_t parked;   /* pulls that wait for that; likewise */
  int32_t kept;      /* non-zero: the store has outlived all of its workers before this one came, so
                        its parameters are not those that sluice_initialise() gave */
} sluice_clocks;

/* What pruning has kept from leaving: see sluice_get_left_behind(). */
typedef struct sluice_left_behind {
  size_t struct_size;
  uint64_t elem_count; /* elements of residuals that are not zero */
  double norm;         /* the root of the sum of their squares */
} sluice_left_behind;

/* What the current step waits for. */
typedef struct sluice_stall {
  size_t struct_size;
  uint64_t stalled_ns;                 /* since something came last; 0: nothing waits */
  char text[4096];                     /* tensors, ranks, when each was last heard; cut to fit */
  uint64_t missing[SLUICE_RANK_WORDS]; /* ranks, as far as an appliance has said */
} sluice_stall;

/* Which part of a job's traffic counters are of. */
typedef struct sluice_part {
  size_t struct_size;
  uint32_t thread; /* of a BCube: which k-th of the gradients */
  uint32_t level;  /* likewise: of the port and the switch */
} sluice_part;

/* Counters since the join; they only grow, but for five facts. In this order
 * sluice_counter_name() tells their names, and sluice_counter_help() more about each. */
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
  uint64_t invalid_packets;   /* arrived but malformed, or of another job */
  uint64_t send_errors;       /* datagrams that the operating system did not take */
  uint64_t steps_done;        /* the last finished step */
  uint64_t non_finite_inputs; /* those of non_finite_results to which this rank sent a NaN or an
                                 infinity: above 0 only on the ranks that sent it */
  /* Gradients by chunk, each of which is one packet. Every chunk that was submitted with data ends
   * as one of: delivered, requeued, discarded. In a synchronous job all are delivered. */
  uint64_t delivered_chunks; /* in the sum of their own step */
  uint64_t late_chunks;      /* not in the sum of their own step */
  uint64_t requeued_chunks;  /* late, and in the sum of a later step */
  uint64_t discarded_chunks; /* late and dropped or too stale, or nobody knows (SLUICE_BEHIND) */
  uint64_t cancelled_bytes; /* of gradients that were not sent because the result was there first */
  uint64_t resyncs;         /* states received from another rank */
  uint64_t receive_credit_packets;    /* results that the transport can buffer */
  uint64_t chunk_bytes;               /* gradient bytes per packet, in use */
  uint64_t shards;                    /* of the appliance */
  uint64_t segmented_packets;         /* of packets_sent, those that the kernel cut from a train */
  uint64_t coalesced_packets;         /* of packets_received, those that came in a train */
  uint64_t kept_chunks;               /* late chunks that went back into the residual */
  uint64_t suspended_ns;              /* that waits for a store's layers have blocked */
  uint64_t oldest_request_iterations; /* by which the oldest push or pull of a store that has not
                                         left is behind the iteration under way, now */
  uint64_t detours;        /* over bcube://: times that another switch stood in for this rank's */
  uint64_t detoured_lanes; /* likewise: lanes that are on such another switch now */
  uint64_t receive_drops;  /* datagrams, or trains of them, that came and found no room: this
                              process looked too late. As lost ones they are asked for again */
} sluice_counters;

/* "0.2.0", the version of the library that is loaded. Never fails; static storage. */
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

/* The policy and its options as text, as files and the environment hold them. Name of the one at
 * `index`, counted from 0, which is the policy itself; NULL beyond the last. Static storage. */
SLUICE_API const char* sluice_policy_option_name(size_t index);

/* Sets the policy and its options: `values` has a text ("saina", "0.5", "one-in-32"), or NULL where
 * none is given, for each of the first `count` names. Without a policy nothing is set. Set
 * options->world_size before. Fails with SLUICE_INVALID_ARGUMENT and a text about the value alone
 * when one cannot be, when the policy needs one that is not given, and when it does not look at one
 * that is given; *wrong (unless NULL) is its index then. */
SLUICE_API sluice_status sluice_set_policy(sluice_options* options, const char* const* values,
                                           size_t count, size_t* wrong);

/* Writes the value of the option at `index` of a policy that sluice_get_policy() has told into
 * `text` of `capacity` bytes, cut to fit. Fails with SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_get_policy_text(const sluice_policy_info* info, size_t index,
                                                char* text, size_t capacity);

/* Where log lines go that belong to no job, and those of jobs joined later whose options have no
 * `log`. NULL: nowhere. The callback must stay callable until it is replaced and those jobs are
 * closed. */
SLUICE_API sluice_status sluice_set_log(sluice_log_fn log, void* user, sluice_log_level level);

/* Joins a job and waits until all world_size ranks have joined: blocks for at most
 * connect_timeout_ms + join_timeout_ms + 1 s, and while the appliance prepares the job's memory.
 * `tensors` are `count` structs (at least one), in registration order, of the same struct_size.
 *
 * On success *job is the membership: a thread of its own now keeps it alive, whatever the caller
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

/* A tensor's next step in the memory of options.device. */
typedef struct sluice_submission {
  size_t struct_size;
  uint32_t tensor; /* these five as the arguments of sluice_submit(), but for where they point */
  uint32_t weight;
  uint32_t priority;
  int32_t catch_up; /* non-zero: as sluice_catch_up(); input and weight are ignored */
  const void* input;
  void* output;
  void* stream; /* cudaStream_t; NULL: the default stream */
} sluice_submission;

/* As sluice_submit(), for device memory. What `stream` has been given so far is done before `input`
 * is read and `output` written; neither call nor stream waits. Both belong to the library until the
 * tensor is done, which it is when its average has arrived in `output`: whatever is given to any
 * stream after a wait has returned, or after on_tensor_done, finds it there.
 *
 * Jobs of a device may mix this with sluice_submit(). In such a job sluice_end_step() takes effect
 * when all that was submitted before has left the device; where it has to be refused, the job fails
 * with its text.
 *
 * Fails as sluice_submit() does, with SLUICE_INVALID_ARGUMENT for a job whose options.memory is
 * SLUICE_MEMORY_HOST, with SLUICE_IO_ERROR when the device can't tell what the stream was given. A
 * copy or kernel that fails later fails the job, for the other ranks at once, with SLUICE_IO_ERROR
 * and a text that has the tensor and the device's own words; no work of the device ever waits for
 * this library.
 */
SLUICE_API sluice_status sluice_submit_device(sluice_job* job, const sluice_submission* submission);

/* Writes what every sluice_memory says about itself with this device into `text` of `capacity`
 * bytes, a line each ("pinned: works, NVIDIA X, 50 GB/s"), cut to fit and ended by a zero byte. May
 * start the device's driver, which takes some seconds. */
SLUICE_API sluice_status sluice_describe_memory(int32_t device, char* text, size_t capacity);

/* Declares that this worker has submitted all that it will submit for the current step. Tensors
 * that were left out count as zero data from this rank (NIL); their results are not delivered here.
 * Returns at once. Needed only when tensors were left out: a step whose tensors have all been
 * submitted ends by itself, and one call after that does nothing. So either call it once every
 * step, or only in steps that leave tensors out.
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
 * What this is made of stands below, for those who write a loop of their own. */

/* Numbers are stable. */
typedef enum sluice_turn_kind {
  SLUICE_TURN_COMPUTE = 1,  /* compute the gradient of `step` and submit every tensor. SLUICE_BEHIND
                               from sluice_submit() may be ignored: the next turn knows */
  SLUICE_TURN_CATCH_UP = 2, /* this rank computes no gradient for `step`: sluice_catch_up() for
                               every tensor, each with memory for its average */
  SLUICE_TURN_APPLY = 3,    /* the outputs of all tensors hold the averages of `step` */
  SLUICE_TURN_SAVE = 4,     /* another rank wants this replica, in which `step` was applied last:
                               sluice_send_state(). Also while a step of its own is awaited */
  SLUICE_TURN_LOAD = 5      /* replace this replica by another rank's, after `step` */
} sluice_turn_kind;

typedef struct sluice_turn {
  size_t struct_size;
  int32_t kind; /* sluice_turn_kind */
  uint32_t step;
  const void* data; /* SLUICE_TURN_LOAD: owned by the job, until the next such turn */
  uint64_t bytes;
} sluice_turn;

/* What this rank has to do next: applies what it has missed before it computes, gets another rank's
 * state when it needs one, gives its own when one is wanted. Blocks while the step that it has
 * submitted is not complete, or a state not here. Fails as sluice_wait_step() and sluice_resync()
 * do (after SLUICE_TIMED_OUT and SLUICE_INTERRUPTED call it again), but for SLUICE_BEHIND, and with
 * SLUICE_INVALID_ARGUMENT when a step was given out and not submitted in full. One thread a job. */
SLUICE_API sluice_status sluice_next_turn(sluice_job* job, int32_t timeout_ms, sluice_turn* turn);

/* Where this rank stands. Fills `position` up to its struct_size. Never blocks. */
SLUICE_API sluice_status sluice_get_position(sluice_job* job, sluice_position* position);

/* The policy that the job runs. Fills `info` up to its struct_size. Never blocks. */
SLUICE_API sluice_status sluice_get_policy(sluice_job* job, sluice_policy_info* info);

/* As sluice_submit() for the tensor's next step, but this rank computed no gradient for it:
 * `output` receives the step's average, and nothing of this rank is added but what it has to
 * requeue. Waits for the step to finish if it has not. All tensors of one step should be either
 * submitted or caught up with; sluice_end_step() declares the rest. Returns at once; fails as
 * sluice_submit() does, and with SLUICE_INVALID_ARGUMENT where it would stop all others: in a
 * synchronous job, and in the first two steps of any. */
SLUICE_API sluice_status sluice_catch_up(sluice_job* job, uint32_t tensor, void* output);

/* What is known about `step`, or with 0 about the newest that is: k, who was in, the effective
 * batch. The last 16 steps that this rank has applied itself are kept (steps that came as another
 * rank's state have none); SLUICE_NOT_FOUND for others. Fills
 * `report` up to its struct_size. Never blocks. */
SLUICE_API sluice_status sluice_get_report(sluice_job* job, uint32_t step, sluice_report* report);

/* Gets the state of another rank, which the appliance chooses: blocks until that rank has given it
 * with sluice_send_state() and all of it is here. Meanwhile the appliance lets the others go on for
 * a few steps and then makes them wait, for resync_hold_ms at most.
 *
 * On success `state->data` is what the other rank gave, valid until the next call of this function
 * or sluice_close(); the tensors' next step is state->step + 1, and sluice_position.behind counts
 * from there. Load the state and catch up without delay: the others are held until then. A gradient
 * of this rank that waits to be requeued is discarded and counted.
 *
 * Fails with SLUICE_TIMED_OUT and SLUICE_INTERRUPTED (the transfer goes on, a further call waits
 * for the same one), SLUICE_BUSY (submissions are in flight, or another thread is in this call),
 * SLUICE_INVALID_ARGUMENT (a synchronous job), SLUICE_EXHAUSTED (no memory for the state: the job
 * goes on). When no rank has a state to give, or it takes longer than the window can be held, the
 * job fails for this rank with SLUICE_REFUSED and a text that says so. */
SLUICE_API sluice_status sluice_resync(sluice_job* job, int32_t timeout_ms, sluice_state* state);

/* Gives the rank that wants it `bytes` bytes at `data`: all that a replica needs (parameters,
 * optimizer state, buffers) after `step` has been applied and before the next one is, in a format
 * that the application defines. `step` is the last one that the state contains, as
 * sluice_wait_step() or a result has told it. Tensors of the next step may be in flight as long as
 * none of it has been applied. Copies `data` and returns at once; the transfer goes on beside later
 * steps. Does nothing when nobody wants it any more. Fails with SLUICE_INVALID_ARGUMENT (NULL, 0
 * bytes, or a step that is not the last finished one: look again), SLUICE_BEHIND and
 * SLUICE_EXHAUSTED (no memory for the copy). */
SLUICE_API sluice_status sluice_send_state(sluice_job* job, const void* data, uint64_t bytes,
                                           uint32_t step);

/* ---- a parameter store: jobs of kind SLUICE_JOB_STORE ----
 *
 * The appliance keeps the parameters, layer by layer. In iteration t, counted from 1, a worker
 * pulls a layer, computes with it, and pushes what it has to add; a fast worker goes on while slow
 * ones are at most staleness_bound iterations behind. One rank gives the initial values, usually 0:
 *
 *   for each layer:  sluice_initialise(job, layer, values, count);        // rank 0 alone
 *   for each layer:  sluice_pull(job, layer, copy, count);
 *   for (t = ...) {
 *     forward:   sluice_wait_pull(job, layer, SLUICE_FOREVER), compute with its copy
 *     backward:  sluice_wait_push(job, layer, ...), sluice_push(job, layer, delta, count, rate),
 *                sluice_pull(job, layer, copy, count)
 *   }
 *
 * What is pulled has, in each packet's worth of elements, whole pushes only: everybody's up to
 * t - 1 - staleness_bound, all of this worker's own, and maybe newer ones; with bound 0 exactly
 * those up to t - 1, the same bits for everybody. A worker that dies or leaves is not waited for
 * any more; one that joins later reads first and begins at sluice_clocks.pushed + 1. What a process
 * had pushed that was lost stays, and so does the store without any worker, for as long as the
 * appliance is told to keep it (limits.store_keep_s): workers of this run or another one, with the
 * same job name, world size, layout and options, then go on where the last ones were, each as it
 * comes, and sluice_clocks.kept says so. sluice_submit() and what goes with it are refused here;
 * sluice_broadcast() and sluice_barrier() work.
 *
 * `values`, `deltas` and `copies` are one pointer for each tensor of the layer, in registration
 * order, to elem_count floats; `count` is their number. The pointers are read before the call
 * returns, the floats belong to the library until the push, or the pull, is done. All of these fail
 * with SLUICE_INVALID_ARGUMENT (no such layer, another number of tensors, NULL, not a store). */

/* The layer's initial values. Where the store has some already, as it has for who comes later,
 * these are ignored. It is waited for as a push is. Returns after a look at all values. Fails with
 * SLUICE_BUSY when the layer was pushed or pulled already, with SLUICE_INVALID_ARGUMENT when one is
 * not finite. */
SLUICE_API sluice_status sluice_initialise(sluice_job* job, uint32_t layer,
                                           const float* const* values, size_t count);

/* Pushes the layer's part of this worker's next iteration: differences of parameters or a gradient,
 * as options.update says. `rate` is the learning rate of SGD and Adam; with bound 0 that of the
 * first push of the iteration counts, so give it alike. Returns after a look at all values;
 * `deltas` are read until the push is done. Fails with SLUICE_BUSY (the layer's last push or pull
 * is under way) and SLUICE_INVALID_ARGUMENT (the layer was not pulled, its copy is too old for the
 * bound, or a tensor, which is named, holds a NaN or an infinity: it would stay in everybody's
 * parameters). */
SLUICE_API sluice_status sluice_push(sluice_job* job, uint32_t layer, const float* const* deltas,
                                     size_t count, double rate);

/* Asks for the layer as the iteration after the last push may read it, with that push in it, which
 * may be under way. Returns at once; `copies` are written until the pull is done. Fails with
 * SLUICE_BUSY (the layer's last pull is under way). */
SLUICE_API sluice_status sluice_pull(sluice_job* job, uint32_t layer, float* const* copies,
                                     size_t count);

/* Wait until the store has counted the layer's last push, or its values are here; SLUICE_OK at once
 * when there was none. A pull waits for members that are more than the bound behind. The order in
 * which each layer's pull is waited for first is taken for that of forward: what it needs first
 * goes first; until then layers go as they were registered. Fail with SLUICE_TIMED_OUT and
 * SLUICE_INTERRUPTED (it goes on). */
SLUICE_API sluice_status sluice_wait_push(sluice_job* job, uint32_t layer, int32_t timeout_ms);
SLUICE_API sluice_status sluice_wait_pull(sluice_job* job, uint32_t layer, int32_t timeout_ms);

/* Fills `clocks` up to its struct_size. Never blocks. */
SLUICE_API sluice_status sluice_get_clocks(sluice_job* job, uint32_t layer, sluice_clocks* clocks);

/* ---- waiting ---- */

/* Waits until the last submission of `tensor` is done: SLUICE_OK at once when it is, or when there
 * was none. `result` may be NULL. Fails with SLUICE_TIMED_OUT and SLUICE_INTERRUPTED (the
 * submission goes on), and with SLUICE_BEHIND (the result is lost to this rank, its output is in
 * parts unspecified, and both buffers are the caller's again). After a timeout, but for timeout 0,
 * sluice_last_error() says who and what is missing; so do all calls that wait. */
SLUICE_API sluice_status sluice_wait_tensor(sluice_job* job, uint32_t tensor, int32_t timeout_ms,
                                            sluice_result* result);

/* Waits until all submissions are done and every step that this worker has ended is complete: then
 * `*step` (unless NULL) is the last one, 0 before the first. Fails as sluice_wait_tensor does. */
SLUICE_API sluice_status sluice_wait_step(sluice_job* job, int32_t timeout_ms, uint32_t* step);

/* What outputs of `tensor` hold from its next submission on, a sluice_averaging, whatever
 * options.averaging says; with SLUICE_AVERAGE_DEFAULT that again. To be called alike on every rank,
 * which nobody checks. Never blocks. Fails with SLUICE_BUSY while the tensor is in flight, with
 * SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_set_averaging(sluice_job* job, uint32_t tensor, int32_t averaging);

/* The residual of a float32 tensor that is rounded or pruned (sluice_wire, sluice_prune_rule): what
 * of this rank's gradients is not delivered yet, an element each. It is a part of a checkpoint:
 * read after a step, set before the first gradient after a restart; it begins as zero. `values`
 * holds elem_count elements. With prune_momentum every float32 tensor has one that is not
 * SLUICE_TENSOR_EXACT, and `values` twice as many elements: the velocity's after the others.
 * Never block, but for a residual on a device: until it is copied. Fail with SLUICE_BUSY while the
 * tensor is in flight, with SLUICE_INVALID_ARGUMENT (NULL, no such tensor, or one that has no
 * residual). */
SLUICE_API sluice_status sluice_get_residual(sluice_job* job, uint32_t tensor, float* values);
SLUICE_API sluice_status sluice_set_residual(sluice_job* job, uint32_t tensor, const float* values);
/* Where the pruning of such a tensor stands: its steps so far, by which a warm-up and samples go,
 * and the last threshold. A number to be kept beside the residual, for sluice_set_pruning() of the
 * same rule after a restart; 0 at the start, and where nothing is pruned. Never block. Fail as
 * those above, and with SLUICE_INVALID_ARGUMENT for a number that cannot be one. */
SLUICE_API sluice_status sluice_get_pruning(sluice_job* job, uint32_t tensor, uint64_t* position);
SLUICE_API sluice_status sluice_set_pruning(sluice_job* job, uint32_t tensor, uint64_t position);
/* Gradients are larger by `factor` from the next ones on, because the scale of the loss has
 * changed: so become all residuals. Never blocks, but where they are on a device. Fails with
 * SLUICE_BUSY in the middle of a step, with SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_scale_residuals(sluice_job* job, double factor);

/* Before the submissions of the last step of a rank that will leave: pruned tensors leave whole
 * from now on, with all that was left behind. Never blocks. Fails with the job's failure. */
SLUICE_API sluice_status sluice_flush_residuals(sluice_job* job);

/* What would be lost if this rank ended now: the residuals of all pruned tensors, without
 * velocities. 0 in a job that does not prune. After sluice_flush_residuals() tensors that are
 * rounded too are left out: rounding always keeps something. Whoever finds something takes one more
 * step after sluice_flush_residuals(), or saves the residuals. Where the log takes warnings
 * (options.log, SLUICE_LOG) sluice_leave(), _finish() and _close() ask this by themselves, which
 * takes as long, and say it there once. Fills `left` up to its struct_size. Takes some 0.1 s for
 * 100 million elements. Never blocks, but for residuals on a device: until they are copied. Fails
 * with SLUICE_BUSY while a pruned tensor is in flight, SLUICE_CLOSED after leaving,
 * SLUICE_INVALID_ARGUMENT (NULL, another size). */
SLUICE_API sluice_status sluice_get_left_behind(sluice_job* job, sluice_left_behind* left);

/* Tells the trace when the result of `tensor` was used; without it that is the return of the first
 * wait for it. Before the next submission. Never blocks. Fails with SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_mark_applied(sluice_job* job, uint32_t tensor);

/* Copies `bytes` bytes, above 0, at `buffer` from rank `root` to all ranks. All ranks must call
 * broadcast and barrier in the same order with the same root and size, or the job fails and both
 * are named. Blocks. The library works on a copy, so `buffer` is the caller's whenever the call
 * does not run; it is written only when SLUICE_OK is returned. A second collective waits for the
 * first within its timeout, also for one that was given up by a timeout. Gradients may be in
 * flight. Fails with SLUICE_TIMED_OUT, _INTERRUPTED, _INVALID_ARGUMENT, _EXHAUSTED (no memory for
 * the copy), and on all ranks with SLUICE_PEER_LOST (the root is gone; the job and its next
 * collective work). */
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
 * rank's name when another one contributes to a step that this one has not. Where uneven ends are
 * meant call sluice_finish; it waits for up to the silence timeout and 1 s, as the others for it.
 */
SLUICE_API sluice_status sluice_leave(sluice_job* job);
SLUICE_API sluice_status sluice_finish(sluice_job* job);

/* Leaves the job because of an error on this side, so that the other ranks fail at once with this
 * rank's name instead of waiting. Otherwise as sluice_leave. */
SLUICE_API sluice_status sluice_abort(sluice_job* job);

/* Ends the membership (as sluice_leave when nothing is in flight, else as sluice_abort), stops the
 * job's thread and frees it. Blocks for at most 1 s; who sums for neighbours (BCube, mode plain) up
 * to the silence timeout more, while they ask. Then no memory of the caller is touched and `job` is
 * invalid. NULL is ignored; a forked child frees nothing. In callbacks: SLUICE_INVALID_ARGUMENT. */
SLUICE_API sluice_status sluice_close(sluice_job* job);

/* Fills `counters` up to its struct_size. Works on a failed job too. Never blocks. */
SLUICE_API sluice_status sluice_get_counters(sluice_job* job, sluice_counters* counters);

/* As sluice_get_counters() for the part `index` of the job's traffic, counted from 0: an ordinary
 * job has one; over bcube://n,k there are k * k, of each thread at each level, without what the
 * servers say to each other beside gradients. Counters of the transport (send_errors,
 * segmented_packets, coalesced_packets, receive_drops) are known for the whole job only.
 * SLUICE_NOT_FOUND beyond the last part. Never blocks. */
SLUICE_API sluice_status sluice_get_part_counters(sluice_job* job, uint32_t index,
                                                  sluice_part* part, sluice_counters* counters);

/* Name of the counter at `index` of sluice_counters, counted from 0, and what it counts; NULL
 * beyond the last. Never fail; static storage. */
SLUICE_API const char* sluice_counter_name(size_t index);
SLUICE_API const char* sluice_counter_help(size_t index);

/* Why the current step waits. Fills `stall` up to its struct_size. On a failed job: why it waited
 * when it failed. Never blocks. */
SLUICE_API sluice_status sluice_get_stall(sluice_job* job, sluice_stall* stall);

/* Writes what the schedule does and knows into `text` of `capacity` bytes, several lines, cut to
 * fit and ended by a zero byte: with SLUICE_SCHEDULE_PROPHET the steps that it has found, when it
 * expects each tensor, and the blocks that it makes of them; of a store how requests are ordered.
 * Never blocks. */
SLUICE_API sluice_status sluice_get_schedule_plan(sluice_job* job, char* text, size_t capacity);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_SLUICE_H_ */
