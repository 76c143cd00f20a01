/* One worker of a job that sums a vector over all ranks, in C.
 *
 * usage: sum_c ADDRESS RANK WORLD_SIZE      such as  sum_c udp://10.77.0.1 0 4
 *
 * Start one process a rank. Each contributes 1, 2, 3, ... times (rank + 1) and prints the sum. */
#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>

enum { ELEM_COUNT = 1000, TIMEOUT_MS = 10000 };

static int fail(const char* what, const sluice_job* job) {
  fprintf(stderr, "sum_c: %s: %s\n", what, sluice_last_error(job));
  return 1;
}

static int sum_once(sluice_job* job, unsigned rank, unsigned world_size) {
  static float values[ELEM_COUNT];
  for (int i = 0; i < ELEM_COUNT; ++i) values[i] = (float)((i + 1) * (int)(rank + 1));

  /* In place; the memory belongs to the library until the wait has returned. */
  if (sluice_submit(job, 0, values, values, 1, 0) != SLUICE_OK) return fail("submit", job);
  if (sluice_wait_tensor(job, 0, TIMEOUT_MS, NULL) != SLUICE_OK) return fail("wait", job);

  const float ranks = (float)(world_size * (world_size + 1) / 2);
  for (int i = 0; i < ELEM_COUNT; ++i) {
    if (values[i] != (float)(i + 1) * ranks) {
      fprintf(stderr, "sum_c: element %d is %g, not %g\n", i, (double)values[i],
              (double)((float)(i + 1) * ranks));
      return 1;
    }
  }
  printf("sum of %d elements over %u ranks: %g %g %g ... with libsluice %s\n", ELEM_COUNT,
         world_size, (double)values[0], (double)values[1], (double)values[2], sluice_version());
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s ADDRESS RANK WORLD_SIZE\n", argv[0]);
    return 2;
  }
  sluice_options options;
  options.struct_size = sizeof options;
  if (sluice_options_init(&options) != SLUICE_OK) return fail("options", NULL);
  options.address = argv[1];
  options.job_name = "sum";
  options.secret = getenv("SLUICE_SECRET");
  options.rank = (uint32_t)strtoul(argv[2], NULL, 10);
  options.world_size = (uint32_t)strtoul(argv[3], NULL, 10);
  options.averaging = SLUICE_AVERAGE_SUM;

  const sluice_tensor tensor = {.struct_size = sizeof tensor,
                                .name = "values",
                                .elem_count = ELEM_COUNT,
                                .dtype = SLUICE_FLOAT32};
  sluice_job* job = NULL;
  if (sluice_join(&options, &tensor, 1, &job) != SLUICE_OK) return fail("join", NULL);
  const int status = sum_once(job, options.rank, options.world_size);
  sluice_close(job);
  return status;
}
