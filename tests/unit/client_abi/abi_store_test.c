/* The C interface's parameter store, used from C: every call with what is wrong, and two workers
 * that push and pull in this process. */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "tests/unit/client_abi/abi_support.h"

enum { LAYERS = 2, TENSORS = 3, ELEMS = 700, ITERATIONS = 4, WAIT_MS = 20000 };

static sluice_options store_options(const char* name, unsigned rank, unsigned world_size) {
  sluice_options options = make_options(name, rank, world_size);
  options.store.enabled = 1;
  return options;
}

/* Layer 0 has two tensors, layer 1 one. */
static void make_tensors(sluice_tensor tensors[TENSORS]) {
  tensors[0] = make_tensor("weight", ELEMS);
  tensors[1] = make_tensor("bias", 3);
  tensors[2] = make_tensor("head", 5);
  tensors[2].flags = SLUICE_TENSOR_LAYER;
}

static sluice_job* join_alone(const char* name) {
  sluice_options options = store_options(name, 0, 1);
  sluice_tensor tensors[TENSORS];
  make_tensors(tensors);
  sluice_job* job = NULL;
  EXPECT(sluice_join(&options, tensors, TENSORS, &job) == SLUICE_OK);
  return job;
}

static sluice_status refused(sluice_options options) {
  sluice_tensor tensors[TENSORS];
  make_tensors(tensors);
  sluice_job* job = NULL;
  const sluice_status status = sluice_join(&options, tensors, TENSORS, &job);
  EXPECT(job == NULL);
  return status;
}

static void test_options(void) {
  const sluice_options good = store_options("inproc://store-options", 0, 1);
  sluice_options options = good;
  options.store.update = 3;
  EXPECT(refused(options) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("options.store.update is 3; use one of sluice_update");
  options = good;
  options.store.enabled = 0;
  options.store.staleness_bound = 1;
  EXPECT(refused(options) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("set options.store.enabled");
  options = good;
  options.wire = SLUICE_WIRE_BFLOAT16;
  EXPECT(refused(options) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("options.wire");
  options = good;
  options.prune.rule = SLUICE_PRUNE_STATIC;
  EXPECT(refused(options) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("options.prune");
  options = good;
  options.store.requests = 3;
  EXPECT(refused(options) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("options.store.requests is 3; use one of sluice_requests");
  options = good;
  options.store.enabled = 0;
  options.store.requests = SLUICE_REQUESTS_FIFO;
  EXPECT(refused(options) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("set options.store.enabled");
}

/* The plan names the order of requests that was asked for. */
static void test_requests(void) {
  static const char* const names[] = {"stalest", "fifo", "filo"};
  for (int requests = SLUICE_REQUESTS_STALEST; requests <= SLUICE_REQUESTS_FILO; ++requests) {
    sluice_options options = store_options("inproc://store-requests", 0, 1);
    EXPECT(requests != SLUICE_REQUESTS_STALEST || options.store.requests == requests);
    options.store.requests = requests;
    sluice_tensor tensors[TENSORS];
    make_tensors(tensors);
    sluice_job* job = NULL;
    EXPECT(sluice_join(&options, tensors, TENSORS, &job) == SLUICE_OK);
    char plan[256];
    EXPECT(sluice_get_schedule_plan(job, plan, sizeof plan) == SLUICE_OK);
    EXPECT(strncmp(plan, names[requests], strlen(names[requests])) == 0);
    EXPECT(sluice_close(job) == SLUICE_OK);
  }
}

/* Each call with no job, with no memory, with a layer that is not there, and of a job of sums. */
static void test_arguments(void) {
  float weight[ELEMS] = {0}, bias[3] = {0}, head[5] = {0};
  float* const both[2] = {weight, bias};
  float* const hole[2] = {weight, NULL};
  float* const three[3] = {weight, bias, head};
  sluice_clocks clocks;
  clocks.struct_size = sizeof clocks;

  EXPECT(sluice_initialise(NULL, 0, (const float* const*)both, 2) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_push(NULL, 0, (const float* const*)both, 2, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_pull(NULL, 0, both, 2) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_push(NULL, 0, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_pull(NULL, 0, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_clocks(NULL, 0, &clocks) == SLUICE_INVALID_ARGUMENT);

  sluice_job* const job = join_alone("inproc://store-arguments");
  EXPECT(sluice_initialise(job, 0, NULL, 2) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("initialise: the pointers are NULL or count is 0");
  EXPECT(sluice_initialise(job, 0, (const float* const*)both, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_initialise(job, 0, (const float* const*)hole, 2) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("initialise: pointer 1 is NULL");
  EXPECT(sluice_initialise(job, 0, (const float* const*)three, 3) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_initialise(job, LAYERS, (const float* const*)both, 2) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_push(job, 0, NULL, 2, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("push: the pointers are NULL or count is 0");
  EXPECT(sluice_push(job, 0, (const float* const*)hole, 2, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_push(job, 0, (const float* const*)both, 2, (double)NAN) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("rate is");
  EXPECT(sluice_push(job, LAYERS, (const float* const*)both, 2, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_push(job, 0, (const float* const*)both, 2, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_pull(job, 0, NULL, 2) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("pull: the pointers are NULL or count is 0");
  EXPECT(sluice_pull(job, 0, hole, 2) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_pull(job, 0, both, 1) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_pull(job, LAYERS, both, 2) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_push(job, LAYERS, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_pull(job, LAYERS, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_clocks(job, LAYERS, &clocks) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_clocks(job, 0, NULL) == SLUICE_INVALID_ARGUMENT);
  clocks.struct_size = 8;
  EXPECT(sluice_get_clocks(job, 0, &clocks) == SLUICE_INVALID_ARGUMENT);
  EXPECT_ERROR("sizeof(sluice_clocks)");
  /* Nothing of what was refused is under way. */
  EXPECT(sluice_wait_push(job, 0, WAIT_MS) == SLUICE_OK);
  EXPECT(sluice_wait_pull(job, 0, WAIT_MS) == SLUICE_OK);
  EXPECT(sluice_submit(job, 0, weight, weight, 1, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_close(job) == SLUICE_OK);

  const sluice_options options = make_options("inproc://store-sums", 0, 1);
  const sluice_tensor tensor = make_tensor("t", ELEMS);
  sluice_job* sums = NULL;
  EXPECT(sluice_join(&options, &tensor, 1, &sums) == SLUICE_OK);
  clocks.struct_size = sizeof clocks;
  EXPECT(sluice_initialise(sums, 0, (const float* const*)both, 1) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_push(sums, 0, (const float* const*)both, 1, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_pull(sums, 0, both, 1) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_push(sums, 0, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_wait_pull(sums, 0, 0) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_get_clocks(sums, 0, &clocks) == SLUICE_INVALID_ARGUMENT);
  EXPECT(sluice_close(sums) == SLUICE_OK);
}

/* Rank 0 gives 1 everywhere; each of the two pushes 2 an iteration, of which half counts: with
 * bound 0 a copy of iteration t holds 1 + 2 (t - 1). */
static void* worker_main(void* argument) {
  const unsigned rank = (unsigned)(size_t)argument;
  sluice_options options = store_options("inproc://store-run", rank, 2);
  sluice_tensor tensors[TENSORS];
  make_tensors(tensors);
  sluice_job* job = NULL;
  EXPECT(sluice_join(&options, tensors, TENSORS, &job) == SLUICE_OK);
  static const size_t counts[LAYERS] = {2, 1};
  float weight[2][ELEMS], bias[3], head[5], delta[ELEMS];
  float* const copies[LAYERS][2] = {{weight[0], bias}, {head, NULL}};
  const float* const deltas[2] = {delta, delta};
  for (unsigned i = 0; i < ELEMS; ++i) delta[i] = 1;
  for (unsigned layer = 0; rank == 0 && layer < LAYERS; ++layer) {
    EXPECT(sluice_initialise(job, layer, deltas, counts[layer]) == SLUICE_OK);
    EXPECT(sluice_wait_push(job, layer, WAIT_MS) == SLUICE_OK);
  }
  for (unsigned i = 0; i < ELEMS; ++i) delta[i] = 2;
  for (unsigned iteration = 1; iteration <= ITERATIONS; ++iteration) {
    for (unsigned layer = 0; layer < LAYERS; ++layer) {
      EXPECT(sluice_pull(job, layer, copies[layer], counts[layer]) == SLUICE_OK);
      EXPECT(sluice_wait_pull(job, layer, WAIT_MS) == SLUICE_OK);
      EXPECT(sluice_initialise(job, layer, deltas, counts[layer]) == SLUICE_BUSY);
    }
    const float right = 1 + 2 * (float)(iteration - 1);
    for (unsigned i = 0; i < ELEMS; ++i) EXPECT(fabsf(weight[0][i] - right) < FLT_EPSILON);
    EXPECT(fabsf(bias[2] - right) < FLT_EPSILON && fabsf(head[4] - right) < FLT_EPSILON);
    for (unsigned layer = LAYERS; layer-- > 0;) {
      sluice_clocks clocks;
      clocks.struct_size = sizeof clocks;
      EXPECT(sluice_get_clocks(job, layer, &clocks) == SLUICE_OK);
      EXPECT(clocks.pushed == iteration - 1 && clocks.held == iteration - 1 && clocks.kept == 0);
      EXPECT(sluice_push(job, layer, deltas, counts[layer], 0) == SLUICE_OK);
    }
    for (unsigned layer = 0; layer < LAYERS; ++layer)
      EXPECT(sluice_wait_push(job, layer, WAIT_MS) == SLUICE_OK);
  }
  EXPECT(sluice_close(job) == SLUICE_OK);
  return NULL;
}

static void test_two_workers(void) {
  pthread_t threads[2];
  for (size_t rank = 0; rank < 2; ++rank)
    EXPECT(pthread_create(&threads[rank], NULL, worker_main, (void*)rank) == 0);
  for (size_t rank = 0; rank < 2; ++rank) EXPECT(pthread_join(threads[rank], NULL) == 0);
}

int main(void) {
  test_options();
  test_requests();
  test_arguments();
  test_two_workers();
  return 0;
}
