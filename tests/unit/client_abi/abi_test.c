/* The C interface, used from C: sizes, NULL, error texts, and four workers that sum in this
 * process. Prints the first broken expectation and exits 1. */
#include <pthread.h>
#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/client_abi/abi_support.h"

enum { WORKERS = 4, STEPS = 3, ELEMS = 5000, WAIT_MS = 20000 };

static void test_names(void) {
  char version[64];
  snprintf(version, sizeof version, "%d.%d.%d", SLUICE_VERSION_MAJOR, SLUICE_VERSION_MINOR,
           SLUICE_VERSION_PATCH);
  EXPECT(strcmp(sluice_version(), version) == 0);
  EXPECT(strcmp(sluice_status_name(SLUICE_OK), "ok") == 0);
  EXPECT(strcmp(sluice_status_name(SLUICE_PEER_LOST), "peer lost") == 0);
  EXPECT(strcmp(sluice_status_name(SLUICE_BEHIND), "behind") == 0);
  EXPECT(strcmp(sluice_status_name((sluice_status)77), "unknown") == 0);
  const size_t counters = (sizeof(sluice_counters) - sizeof(size_t)) / sizeof(uint64_t);
  for (size_t i = 0; i < counters; ++i) {
    EXPECT(sluice_counter_name(i) != NULL && sluice_counter_name(i)[0] != '\0');
    EXPECT(sluice_counter_help(i) != NULL && sluice_counter_help(i)[0] != '\0');
  }
  EXPECT(sluice_counter_name(counters) == NULL && sluice_counter_help(counters) == NULL);
}

/* A program that was compiled with another version's header: each struct that is longer or shorter
 * by a field is refused by its name, and nothing beyond struct_size is read or written. */
static void test_sizes(void) {
  sluice_options options;
  memset(&options, 0, sizeof options);
  EXPECT(sluice_options_init(NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_options_init(&options) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("sluice_options.struct_size is 0 and not ");
  EXPECT_ERROR("compiled with another version's sluice.h");
  EXPECT_ERROR("recompile it with that of ");
  EXPECT_ERROR("set it to sizeof(sluice_options)");

  const sluice_tensor tensor = make_tensor("t", 8);
  sluice_job* job = NULL;
  static const int changes[] = {-8, 8};
  for (int i = 0; i < 2; ++i) {
    const size_t size = sizeof options + (size_t)changes[i];
    memset(&options, 0x5a, sizeof options);
    options.struct_size = size;
    EXPECT(sluice_options_init(&options) == SLUICE_INVALID_ARGUMENT);
    EXPECT(options.struct_size == size && options.mtu == 0x5a5a5a5a);
    EXPECT(sluice_join(&options, &tensor, 1, &job) == SLUICE_INVALID_ARGUMENT && job == NULL);
    EXPECT_ERROR("sizeof(sluice_options)");
    EXPECT(sluice_set_policy(&options, NULL, 0, NULL) == SLUICE_INVALID_ARGUMENT);
    EXPECT_ERROR("sizeof(sluice_options)");
  }
}

static void test_defaults_and_infos(void) {
  const sluice_options options = make_options("inproc://defaults", 0, 1);
  EXPECT(options.mtu == 1500 && options.allow_nil == 1 && options.trace_dir == NULL);
  EXPECT(options.policy.kind == SLUICE_POLICY_DEFAULT && options.policy.round_steps == 5);
  EXPECT(options.schedule.kind == SLUICE_SCHEDULE_STRICT && options.schedule.unit_bytes == 1 << 20);
  EXPECT(options.schedule.credit_bytes == 4 << 20 && options.prune.min_elems == 1024);
  EXPECT(options.timeouts.join_ms == 60000 && options.timeouts.stall_report_ms == 5000);
  EXPECT(options.timeouts.restart_ms == 60000);
  EXPECT(options.callbacks.log_level == SLUICE_LOG_INFO && options.reproducible == -1);
  const sluice_tensor tensor = make_tensor("t", 8);
  sluice_job* job = NULL;
  EXPECT(sluice_join(&options, &tensor, 1, &job) == SLUICE_OK);
  sluice_policy_info info;
  info.struct_size = sizeof info;
  EXPECT(sluice_get_policy(job, &info) == SLUICE_OK);
  EXPECT(info.policy.kind == SLUICE_POLICY_SYNC && info.tolerates_stragglers == 0);
  EXPECT(sluice_get_policy(job, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_position(job, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_next_turn(job, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_report(job, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_resync(job, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_send_state(job, NULL, 8, 0) == SLUICE_INVALID_ARGUMENT);
  info.struct_size = sizeof info + 8;
  EXPECT(sluice_get_policy(job, &info) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("sizeof(sluice_policy_info)");
  sluice_counters stats;
  stats.struct_size = sizeof stats - 8;
  EXPECT(sluice_get_counters(job, &stats) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("sizeof(sluice_counters)");
  EXPECT(sluice_close(job) == SLUICE_OK);
}

/* A schedule, and a trace: the values that are wrong, and what the right ones do. */
static void test_schedule_and_trace(void) {
  const sluice_tensor tensor = make_tensor("t", 8);
  sluice_options options = make_options("inproc://trace", 0, 1);
  sluice_job* job = NULL;
  options.schedule.kind = 4;
  EXPECT(sluice_join(&options, &tensor, 1, &job) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("options.schedule.kind is 4; use one of sluice_schedule_kind");
  options.schedule.kind = SLUICE_SCHEDULE_PROPHET;
  options.trace_dir = "/dev/null/trace";
  EXPECT(sluice_join(&options, &tensor, 1, &job) == SLUICE_IO_ERROR);
  EXPECT_ERROR("trace folder '/dev/null/trace': cannot make it: Not a directory");

  char folder[] = "/tmp/sluice-trace-XXXXXX";
  EXPECT(mkdtemp(folder) != NULL);
  char path[128];
  options.trace_dir = folder;
  EXPECT(sluice_join(&options, &tensor, 1, &job) == SLUICE_OK);
  float values[8] = {0};
  EXPECT(sluice_submit(job, 0, values, values, 1, 200) == SLUICE_OK);
  EXPECT(sluice_wait_tensor(job, 0, SLUICE_FOREVER, NULL) == SLUICE_OK);
  EXPECT(sluice_mark_applied(job, 0) == SLUICE_OK);
  EXPECT(sluice_mark_applied(job, 1) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("tensor 1 does not exist; the job has 1 tensors");
  char plan[4096];
  EXPECT(sluice_get_schedule_plan(job, NULL, 8) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_schedule_plan(job, plan, sizeof plan) == SLUICE_OK);
  EXPECT(strncmp(plan, "prophet", 7) == 0);
  EXPECT(sluice_get_schedule_plan(job, plan, 4) == SLUICE_OK && strcmp(plan, "pro") == 0);
  EXPECT(sluice_close(job) == SLUICE_OK);
  snprintf(path, sizeof path, "%s/sluice-abi-rank0.json", folder);
  char text[4096] = {0};
  FILE* file = fopen(path, "r");
  EXPECT(file != NULL && fread(text, 1, sizeof text - 1, file) > 0);
  if (file != NULL) fclose(file);
  EXPECT(strstr(text, "\"step 1\"") != NULL && strstr(text, "\"priority\":200") != NULL);
  EXPECT(strstr(text, "\n]\n") != NULL);
  unlink(path);
  rmdir(folder);
}

static void expect_refused(const sluice_options* options, const sluice_tensor* tensor, size_t count,
                           const char* text, int line) {
  sluice_job* job = (sluice_job*)&job;
  expect(sluice_join(options, tensor, count, &job) == SLUICE_INVALID_ARGUMENT, "refused", __FILE__,
         line);
  expect(job == NULL, "no job", __FILE__, line);
  expect(strstr(sluice_last_error(NULL), text) != NULL, text, __FILE__, line);
}
#define EXPECT_REFUSED(options, tensor, count, text) \
  expect_refused((options), (tensor), (count), (text), __LINE__)

/* The sizes of the schedule 'credit', and who may give them. */
static void test_credit_sizes(void) {
  const sluice_tensor tensor = make_tensor("t", 8);
  sluice_options options = make_options("inproc://credit", 0, 1);
  options.schedule.unit_bytes = 4096;
  EXPECT_REFUSED(&options, &tensor, 1, "unit_bytes is 4096, which only the schedule 'credit' uses");
  options.schedule.kind = SLUICE_SCHEDULE_CREDIT;
  options.schedule.credit_bytes = 4095;
  EXPECT_REFUSED(
      &options, &tensor, 1,
      "credit_bytes is 4095; must be at least options.schedule.unit_bytes, which is 4096");
  options.schedule.unit_bytes = 0;
  EXPECT_REFUSED(&options, &tensor, 1, "unit_bytes is 0; must be above 0");
  options = make_options("inproc://credit", 0, 1);
  options.schedule.kind = SLUICE_SCHEDULE_PROPHET;
  options.schedule.credit_bytes = 1u << 30;
  EXPECT_REFUSED(&options, &tensor, 1, "credit_bytes is 1073741824, which only the schedule");

  options = make_options("inproc://credit", 0, 1);
  options.schedule.kind = SLUICE_SCHEDULE_CREDIT;
  sluice_job* job = NULL;
  EXPECT(sluice_join(&options, &tensor, 1, &job) == SLUICE_OK);
  char plan[256];
  EXPECT(sluice_get_schedule_plan(job, plan, sizeof plan) == SLUICE_OK);
  EXPECT(strstr(plan, "units of at most 780 packets") != NULL); /* of 1,344 bytes */
  EXPECT(sluice_close(job) == SLUICE_OK);
}

static void test_bad_joins(void) {
  const sluice_options good = make_options("inproc://bad", 0, 1);
  const sluice_tensor tensor = make_tensor("t", 8);
  sluice_options options = good;
  EXPECT(sluice_join(&good, &tensor, 1, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT_REFUSED(NULL, &tensor, 1, "options is NULL");
  EXPECT_REFUSED(&good, NULL, 1, "at least one tensor");
  EXPECT_REFUSED(&good, &tensor, 0, "at least one tensor");
  options.struct_size = 8;
  EXPECT_REFUSED(&options, &tensor, 1, "sizeof(sluice_options)");
  options = good;
  options.rank = 1;
  EXPECT_REFUSED(&options, &tensor, 1, "rank is 1; must be below world_size 1");
  options = good;
  options.world_size = 1025;
  EXPECT_REFUSED(&options, &tensor, 1, "world_size is 1025");
  options = good;
  options.job_name = NULL;
  EXPECT_REFUSED(&options, &tensor, 1, "job_name");
  options = good;
  options.address = "tcp://10.0.0.1";
  EXPECT_REFUSED(&options, &tensor, 1, "unknown scheme \"tcp\"");
  options = good;
  options.chunk_bytes = 100;
  EXPECT_REFUSED(&options, &tensor, 1, "chunk_bytes 100 must be a multiple of 64 and at most 1344");
  options = good;
  options.averaging = 9;
  EXPECT_REFUSED(&options, &tensor, 1, "averaging is 9");
  options = good;
  options.wire = 3;
  EXPECT_REFUSED(&options, &tensor, 1, "wire is 3");
  options = good;
  options.prune.rule = 6;
  EXPECT_REFUSED(&options, &tensor, 1, "options.prune.rule is 6");
  options.prune.rule = SLUICE_PRUNE_SIGMA;
  options.prune.fraction = 0.1;
  EXPECT_REFUSED(&options, &tensor, 1, "prune.fraction is 0.1, which only");
  options.prune.rule = SLUICE_PRUNE_STATIC;
  options.prune.fraction = 1.5;
  EXPECT_REFUSED(&options, &tensor, 1, "prune.fraction is 1.5; must be above 0 and at most 1");
  options = good;
  options.prune.warmup = 5;
  EXPECT_REFUSED(&options, &tensor, 1, "prune.warmup is 5, which only");
  options = good;
  options.prune.sigmas = 2;
  EXPECT_REFUSED(&options, &tensor, 1, "prune.sigmas is 2, which only");
  options.prune.rule = SLUICE_PRUNE_SIGMA;
  options.prune.sigmas = -1;
  EXPECT_REFUSED(&options, &tensor, 1, "prune.sigmas is -1; must be a number above 0");
  options = good;
  options.timeouts.join_ms = 0;
  EXPECT_REFUSED(&options, &tensor, 1, "options.timeouts.join_ms is 0; must be 1 to 86400000");
  sluice_tensor bad = tensor;
  bad.dtype = 3;
  EXPECT_REFUSED(&good, &bad, 1, "dtype 3 does not exist");
  bad = tensor;
  bad.elem_count = 0;
  EXPECT_REFUSED(&good, &bad, 1, "t");
  bad = tensor;
  bad.flags = 10;
  EXPECT_REFUSED(&good, &bad, 1, "flags 10");
  bad = tensor;
  bad.struct_size = 4;
  EXPECT_REFUSED(&good, &bad, 1, "sluice_tensor.struct_size is 4");
}

static void test_null_job(void) {
  sluice_counters stats;
  stats.struct_size = sizeof stats;
  float value = 0;
  EXPECT(sluice_submit_many(NULL, NULL, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_tensors(NULL, NULL, 0, 0, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_submit(NULL, 0, &value, &value, 1, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("job is NULL");
  EXPECT(sluice_end_step(NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_tensor(NULL, 0, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_step(NULL, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_broadcast(NULL, 0, &value, sizeof value, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_barrier(NULL, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_status(NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_leave(NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_abort(NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_counters(NULL, &stats) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_push(NULL, 0, NULL, 0, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_pull(NULL, 0, NULL, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_clocks(NULL, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_stall(NULL, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_close(NULL) == SLUICE_OK);
}

static void test_bad_calls(void) {
  const sluice_options options = make_options("inproc://calls", 0, 1);
  const sluice_tensor tensor = make_tensor("weights", 8);
  sluice_job* job = NULL;
  EXPECT(sluice_join(&options, &tensor, 1, &job) == SLUICE_OK);
  float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT(sluice_submit(job, 1, values, values, 1, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("tensor 1 does not exist; the job has 1 tensors");
  EXPECT(sluice_submit(job, 0, values, NULL, 1, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("'weights': output is NULL");
  EXPECT(sluice_submit(job, 0, values, values, 1, 256) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("priority 256");
  EXPECT(sluice_submit_many(job, NULL, 0) == SLUICE_OK);
  EXPECT(sluice_submit_many(job, NULL, 1) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("sluice_submission is NULL");
  EXPECT(sluice_wait_tensors(job, NULL, 0, 0, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_tensor(job, 5, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_broadcast(job, 1, values, 4, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("broadcast from rank 1: the world has ranks 0 to 0");
  EXPECT(sluice_broadcast(job, 0, NULL, 4, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_broadcast(job, 0, values, 0, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_counters(job, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_part_counters(job, 0, NULL, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_stall(job, NULL) == SLUICE_INVALID_ARGUMENT);
  sluice_result result;
  result.struct_size = 0;
  EXPECT(sluice_wait_tensor(job, 0, 0, &result) == SLUICE_INVALID_ARGUMENT);

  /* None of these has hurt the job. */
  EXPECT(sluice_get_status(job) == SLUICE_OK);
  EXPECT(sluice_submit(job, 0, values, values, 2, 0) == SLUICE_OK);
  result.struct_size = sizeof result;
  EXPECT(sluice_wait_tensor(job, 0, WAIT_MS, &result) == SLUICE_OK);
  EXPECT(result.weight == 2 && result.step == 1 && !result.absent && !result.non_finite);
  EXPECT(values[7] == 4.0f); /* weight 2: the sum of two samples becomes their mean */
  EXPECT(sluice_leave(job) == SLUICE_OK);
  EXPECT(sluice_submit(job, 0, values, values, 1, 0) == SLUICE_CLOSED);
  EXPECT(strstr(sluice_last_error(job), "left") != NULL);
  EXPECT(sluice_close(job) == SLUICE_OK);
}

static void* run_worker(void* argument) {
  const unsigned rank = *(const unsigned*)argument;
  sluice_options options = make_options("inproc://sum", rank, WORKERS);
  options.averaging = SLUICE_AVERAGE_SUM;
  const sluice_tensor tensors[2] = {make_tensor("first", ELEMS), make_tensor("second", 1)};
  sluice_job* job = NULL;
  EXPECT(sluice_join(&options, tensors, 2, &job) == SLUICE_OK);
  static float memory[WORKERS][ELEMS];
  float* values = memory[rank];
  for (int step = 1; step <= STEPS; ++step) {
    float one = (float)step;
    float sum = -1;
    for (int i = 0; i < ELEMS; ++i) values[i] = (float)(i % 100 + step * (int)(rank + 1));
    EXPECT(sluice_submit(job, 1, &one, &sum, 1, 9) == SLUICE_OK);
    EXPECT(sluice_submit(job, 0, values, values, 1, 0) == SLUICE_OK);
    uint32_t done = 0;
    EXPECT(sluice_wait_step(job, WAIT_MS, &done) == SLUICE_OK && done == (uint32_t)step);
    for (int i = 0; i < ELEMS; ++i) EXPECT(values[i] == (float)(4 * (i % 100) + step * 10));
    EXPECT(one == (float)step && sum == (float)(4 * step));
  }
  char message[4000];
  memset(message, rank == 2 ? 'x' : 'o', sizeof message);
  EXPECT(sluice_broadcast(job, 2, message, sizeof message, WAIT_MS) == SLUICE_OK);
  EXPECT(message[0] == 'x' && message[sizeof message - 1] == 'x');
  EXPECT(sluice_barrier(job, WAIT_MS) == SLUICE_OK);
  sluice_counters stats;
  stats.struct_size = sizeof stats;
  EXPECT(sluice_get_counters(job, &stats) == SLUICE_OK);
  EXPECT(stats.steps_done == STEPS && stats.packets_sent > 0 && stats.shards == 1);
  EXPECT(stats.chunk_bytes == 1344 && stats.invalid_packets == 0);
  sluice_part part;
  part.struct_size = sizeof part;
  stats.steps_done = 0;
  EXPECT(sluice_get_part_counters(job, 0, &part, &stats) == SLUICE_OK);
  EXPECT(part.thread == 0 && part.level == 0 && stats.steps_done == STEPS);
  EXPECT(sluice_get_part_counters(job, 1, &part, &stats) == SLUICE_NOT_FOUND);
  EXPECT(sluice_close(job) == SLUICE_OK);
  return NULL;
}

static void test_sum(void) {
  pthread_t threads[WORKERS];
  unsigned ranks[WORKERS];
  for (unsigned rank = 0; rank < WORKERS; ++rank) {
    ranks[rank] = rank;
    EXPECT(pthread_create(&threads[rank], NULL, run_worker, &ranks[rank]) == 0);
  }
  for (unsigned rank = 0; rank < WORKERS; ++rank) pthread_join(threads[rank], NULL);
}

int main(void) {
  test_names();
  test_sizes();
  test_defaults_and_infos();
  test_credit_sizes();
  test_schedule_and_trace();
  test_bad_joins();
  test_null_job();
  test_bad_calls();
  test_sum();
  puts("all expectations hold");
  return 0;
}
