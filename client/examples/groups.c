/* One rank of a job of operations, in C: sums a vector over all ranks.
 *
 * usage: groups_c ADDRESS RANK WORLD_SIZE      such as  groups_c udp://10.77.0.1 0 4 */
#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>

enum { ELEM_COUNT = 1000000, TIMEOUT_MS = 10000 };
static float values[ELEM_COUNT];

static int fail(const char* what) {
  fprintf(stderr, "groups_c: %s: %s\n", what, sluice_last_error(NULL));
  return 1;
}

static int run(sluice_job* job, uint32_t rank, uint32_t world_size) {
  uint32_t ranks[1024];
  for (uint32_t i = 0; i < world_size; ++i) ranks[i] = i;
  for (uint32_t i = 0; i < ELEM_COUNT; ++i) values[i] = (float)(rank + 1);

  sluice_group* group = NULL; /* there may be more, of some of the ranks */
  if (sluice_make_group(job, "all", ranks, world_size, &group) != SLUICE_OK) return fail("group");
  uint64_t ticket = 0; /* in place; the memory is the library's until the wait has returned */
  if (sluice_all_reduce(group, values, values, ELEM_COUNT, NULL, &ticket) != SLUICE_OK ||
      sluice_wait(group, ticket, TIMEOUT_MS, NULL) != SLUICE_OK)
    return fail("all_reduce");
  printf("rank %u: the sum of %d elements is %g each\n", rank, ELEM_COUNT, (double)values[7]);
  return values[7] == (float)(world_size * (world_size + 1) / 2) ? 0 : 1;
}

int main(int argc, char** argv) {
  sluice_options options = {.struct_size = sizeof options};
  if (argc != 4 || sluice_options_init(&options) != SLUICE_OK) return 2;
  options.address = argv[1];
  options.job_name = "groups";
  options.rank = (uint32_t)strtoul(argv[2], NULL, 10);
  options.world_size = (uint32_t)strtoul(argv[3], NULL, 10);
  sluice_job* job = NULL;
  if (sluice_join_operations(&options, &job) != SLUICE_OK) return fail("join");
  const int status = run(job, options.rank, options.world_size);
  sluice_close(job);
  return status;
}
