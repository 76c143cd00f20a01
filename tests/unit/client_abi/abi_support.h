/* What the tests in C share: the first broken expectation is printed and ends the process with 1.
 */
#ifndef SLUICE_TESTS_ABI_SUPPORT_H
#define SLUICE_TESTS_ABI_SUPPORT_H

#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(int condition, const char* what, const char* file, int line) {
  if (condition) return;
  fprintf(stderr, "%s:%d: expected %s; last error: %s\n", file, line, what,
          sluice_last_error(NULL));
  exit(1);
}
#define EXPECT(condition) expect((condition), #condition, __FILE__, __LINE__)
#define EXPECT_ERROR(part) \
  expect(strstr(sluice_last_error(NULL), part) != NULL, part, __FILE__, __LINE__)

static sluice_options make_options(const char* name, unsigned rank, unsigned world_size) {
  sluice_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  EXPECT(sluice_options_init(&options) == SLUICE_OK);
  options.address = name;
  options.job_name = "abi";
  options.rank = rank;
  options.world_size = world_size;
  options.run_id = 7;
  return options;
}

static sluice_tensor make_tensor(const char* name, uint64_t elem_count) {
  sluice_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.name = name;
  tensor.elem_count = elem_count;
  tensor.dtype = SLUICE_FLOAT32;
  return tensor;
}

#endif
