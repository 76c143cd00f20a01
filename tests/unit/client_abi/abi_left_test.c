/* The values that pruning leaves behind, by a call and in the log, from C. Prints the first broken
 * expectation and exits 1. */
#include <math.h>
#include <sluice/sluice.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/client_abi/abi_support.h"

enum { ELEMS = 2000, WAIT_MS = 20000 };

struct said {
  int lines;
  char last[1024];
};

static void hear(void* user, sluice_log_level level, const char* text) {
  struct said* said = user;
  EXPECT(level == SLUICE_LOG_WARN);
  ++said->lines;
  snprintf(said->last, sizeof said->last, "%s", text);
}

/* The few greatest leave: of 1 .. 2000 that is 1999 and 2000. */
static sluice_job* join_pruned(struct said* said) {
  memset(said, 0, sizeof *said);
  sluice_options options = make_options("inproc://left", 0, 1);
  options.prune.rule = SLUICE_PRUNE_STATIC;
  options.prune.fraction = 0.001;
  options.callbacks.log = hear;
  options.callbacks.log_level = SLUICE_LOG_WARN;
  options.callbacks.user = said;
  const sluice_tensor tensor = make_tensor("weights", ELEMS);
  sluice_job* job = NULL;
  EXPECT(sluice_join(&options, &tensor, 1, &job) == SLUICE_OK);
  return job;
}

static void step(sluice_job* job) {
  static float values[ELEMS];
  for (int i = 0; i < ELEMS; ++i) values[i] = (float)(i + 1);
  EXPECT(sluice_submit(job, 0, values, values, 1, 0) == SLUICE_OK);
  EXPECT(sluice_wait_step(job, WAIT_MS, NULL) == SLUICE_OK);
}

static void test_bad_calls(void) {
  struct said said;
  sluice_job* job = join_pruned(&said);
  sluice_left_behind left;
  memset(&left, 0, sizeof left);
  EXPECT(sluice_get_left_behind(job, NULL) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("sluice_left_behind is NULL");
  EXPECT(sluice_get_left_behind(job, &left) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("sizeof(sluice_left_behind)");
  left.struct_size = sizeof left;
  EXPECT(sluice_get_left_behind(NULL, &left) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("job is NULL");
  EXPECT(sluice_close(job) == SLUICE_OK);
  EXPECT(said.lines == 0);
}

static void test_what_is_told(void) {
  struct said said;
  sluice_job* job = join_pruned(&said);
  step(job);
  sluice_left_behind left;
  left.struct_size = sizeof left;
  EXPECT(sluice_get_left_behind(job, &left) == SLUICE_OK);
  EXPECT(left.struct_size == sizeof left && left.elem_count == 1998);
  /* Of 1 .. 1998: n (n + 1) (2 n + 1) / 6. */
  EXPECT(left.norm == sqrt(2660670999.0));
  EXPECT(said.lines == 0);
  EXPECT(sluice_leave(job) == SLUICE_OK);
  EXPECT(said.lines == 1);
  EXPECT(strstr(said.last, "job 'abi' rank 0 at inproc://left: ends, and 1998 elements") != NULL);
  EXPECT(strstr(said.last, "call sluice_flush_residuals() before") != NULL);
  EXPECT(sluice_get_left_behind(job, &left) == SLUICE_CLOSED);
  EXPECT(sluice_close(job) == SLUICE_OK);
  EXPECT(said.lines == 1);
}

static void test_nothing_after_a_flush(void) {
  struct said said;
  sluice_job* job = join_pruned(&said);
  sluice_left_behind left;
  left.struct_size = sizeof left;
  step(job);
  EXPECT(sluice_flush_residuals(job) == SLUICE_OK);
  step(job);
  EXPECT(sluice_get_left_behind(job, &left) == SLUICE_OK);
  EXPECT(left.elem_count == 0 && left.norm == 0);
  EXPECT(sluice_close(job) == SLUICE_OK);
  EXPECT(said.lines == 0);
}

int main(void) {
  test_bad_calls();
  test_what_is_told();
  test_nothing_after_a_flush();
  puts("all expectations hold");
  return 0;
}
