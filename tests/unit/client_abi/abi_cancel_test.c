/* Threads that are cancelled in calls that wait for ever: each ends, and its job goes on. */
#include <pthread.h>
#include <sluice/sluice.h>

#include "tests/unit/client_abi/abi_support.h"

enum { WAIT_MS = 20000, ELEMS = 8 };

static sluice_job* jobs[2];

static void join(unsigned rank, unsigned world_size, const char* job_name) {
  sluice_options options = make_options("inproc://cancel", rank, world_size);
  options.job_name = job_name;
  const sluice_tensor tensor = make_tensor("t", ELEMS);
  EXPECT(sluice_join(&options, &tensor, 1, &jobs[rank]) == SLUICE_OK);
}

static void* join_second(void* unused) {
  join(1, 2, "pair");
  return unused;
}

static void* join_nobody(void* unused) {
  join(0, 2, "nobody");
  return unused;
}

static void* wait_for_the_step(void* unused) {
  sluice_wait_step(jobs[0], SLUICE_FOREVER, NULL);
  return unused;
}

static void* wait_for_the_tensor(void* unused) {
  sluice_result result = {.struct_size = sizeof result};
  sluice_wait_tensor(jobs[0], 0, SLUICE_FOREVER, &result);
  return unused;
}

static void* wait_at_the_barrier(void* unused) {
  sluice_barrier(jobs[0], SLUICE_FOREVER);
  return unused;
}

static void* wait_and_may_not_be_cancelled(void* unused) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  EXPECT(sluice_wait_step(jobs[0], SLUICE_FOREVER, NULL) == SLUICE_OK);
  return unused;
}

static void expect_cancelled(void* (*call)(void*)) {
  pthread_t thread;
  void* outcome = NULL;
  EXPECT(pthread_create(&thread, NULL, call, &outcome) == 0);
  EXPECT(pthread_cancel(thread) == 0);
  EXPECT(pthread_join(thread, &outcome) == 0);
  EXPECT(outcome == PTHREAD_CANCELED);
}

static float values[2][ELEMS];

int main(void) {
  expect_cancelled(join_nobody);

  pthread_t second, waiting;
  EXPECT(pthread_create(&second, NULL, join_second, NULL) == 0);
  join(0, 2, "pair");
  EXPECT(pthread_join(second, NULL) == 0);

  for (int i = 0; i < ELEMS; ++i) values[0][i] = 2, values[1][i] = 4;
  EXPECT(sluice_submit(jobs[0], 0, values[0], values[0], 1, 0) == SLUICE_OK);
  expect_cancelled(wait_for_the_step);
  expect_cancelled(wait_for_the_tensor);
  expect_cancelled(wait_at_the_barrier);
  EXPECT(pthread_create(&waiting, NULL, wait_and_may_not_be_cancelled, &values) == 0);
  EXPECT(pthread_cancel(waiting) == 0);

  EXPECT(sluice_submit(jobs[1], 0, values[1], values[1], 1, 0) == SLUICE_OK);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT(sluice_wait_step(jobs[rank], WAIT_MS, NULL) == SLUICE_OK);
    EXPECT(values[rank][0] == 3 && values[rank][ELEMS - 1] == 3);
  }
  EXPECT(pthread_join(waiting, NULL) == 0);
  EXPECT(sluice_barrier(jobs[1], WAIT_MS) == SLUICE_OK); /* which rank 0's thread has called */
  for (int rank = 0; rank < 2; ++rank) EXPECT(sluice_close(jobs[rank]) == SLUICE_OK);
  return 0;
}
