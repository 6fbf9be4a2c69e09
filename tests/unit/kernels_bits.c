/* Prints a hash of what each part of kernels.c computes out of the same numbers, so that builds for
 * two processors can be compared: `test_kernels.py` compiles this file with it. */
#include <stdio.h>
#ifdef __AMX_INT8__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include KERNELS

static uint64_t state = 1;

static uint32_t any(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

static float *numbers(int64_t n, float size) {
  float *made = malloc(n * sizeof(float));
  for (int64_t i = 0; i < n; i++) made[i] = size * ((int32_t)(any() % 2000001) - 1000000) / 1e6f;
  return made;
}

static void tell(const char *name, int64_t index, const void *made, size_t size) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; i++) hash = (hash ^ ((const uint8_t *)made)[i]) * 1099511628211u;
  printf("%s %d %016llx\n", name, (int)index, (unsigned long long)hash);
}

/* Random weights; integers lie as the build reads them. */
static Matrix matrix(int kind, int64_t n, int64_t k) {
  int split = kind == SIXTEEN_BITS && split_weights && k % split_weights == 0;
  int size = kind == SINGLE ? 4 : kind == HALF || kind == SIXTEEN_BITS ? 2 : 1;
  int together = kind <= HALF                              ? 1
                 : kind == EIGHT_BITS                      ? bytes_at_once
                 : kind == EIGHT_BY_SIXTEEN && split_rows ? 4
                 : split                                   ? 4
                                                           : 2;
  char *packed = calloc(n * k, size);
  int32_t *start = calloc(n, sizeof(int32_t));
  float *step = numbers(n, 1e-3f);
  for (int64_t o = 0; o < n; o++)
    for (int64_t i = 0; i < k; i++) {
      int64_t at =
          ((o / 32 * (k / together) + i / together) * 32 + o % 32) * together + i % together;
      uint32_t number = any();
      if (kind == SINGLE) ((float *)packed)[at] = (number % 2001 - 1000.0f) / 10007;
      if (kind == HALF) ((uint16_t *)packed)[at] = number % 1024 + (8 + number / 1024 % 4) * 1024;
      int sixteen = number % 4001 - 2000;
      if (split) {
        int64_t low = o / 32 * k * 32 + at;
        packed[low] = sixteen >> 8, packed[low + k * 32] = sixteen;
      } else if (kind == SIXTEEN_BITS) {
        ((int16_t *)packed)[at] = sixteen;
      }
      if (kind == EIGHT_BITS || kind == EIGHT_BY_SIXTEEN) packed[at] = number % 255 - 127;
      if (kind == EIGHT_BITS) start[o] -= byte_zero * packed[at];
      if (kind == EIGHT_BY_SIXTEEN && split_rows) start[o] -= 32768 * packed[at];
      if (split) start[o] -= 32768 * sixteen;
    }
  float unit = kind <= HALF ? 0.5f : kind == EIGHT_BITS ? 4.0f / 127 : 1e-4f;
  return (Matrix){packed, start, step, k, n, unit, split ? SPLIT_SIXTEEN : kind};
}

static void layers(int64_t head_width, int kind, int rotated) {
  enum { HEADS = 4, KV_HEADS = 2, ROWS = 7, BEFORE = 41, ROOM = 64, INNER = 96, SEQUENCES = 2 };
  int64_t width = HEADS * head_width, cached = KV_HEADS * ROOM * head_width;
  Layer made[2];
  for (int i = 0; i < 2; i++)
    made[i] = (Layer){.qkv = matrix(kind, (HEADS + 2 * KV_HEADS) * head_width, width),
                      .out = matrix(rotated ? EIGHT_BITS : kind, width, width),
                      .gate_up = matrix(rotated ? EIGHT_BITS : kind, 2 * INNER, width),
                      .down = matrix(rotated ? EIGHT_BY_SIXTEEN : kind, width, INNER),
                      .norm = numbers(width, 1),
                      .after_norm = numbers(width, 1)};
  Stack stack = {made,     NULL,       NULL,  numbers(width, 1),    width, HEADS,
                 KV_HEADS, head_width, 0.01f, 1 / sqrtf(head_width)};
  int64_t rows = SEQUENCES * ROWS, size = rows * width;
  float *mask = numbers(SEQUENCES * ROWS * (BEFORE + ROWS), 1), *hidden = numbers(size, 0);
  float *cache = numbers(4 * SEQUENCES * cached, 1);
  for (int64_t i = 0; i < rows * (BEFORE + ROWS); i += 3) mask[i] = -3.4e38f;
  for (int masked = 0; masked < 2; masked++) {
    float *x = numbers(size, 1), *cos_sin = numbers(rows * head_width, 1);
    Step step = {.x = x,
                 .hidden = hidden,
                 .cos_sin = cos_sin,
                 .cache = cache,
                 .layer = 2 * SEQUENCES * cached,
                 .sequence = cached,
                 .head = ROOM * head_width,
                 .row = head_width,
                 .to_values = SEQUENCES * cached,
                 .mask = masked ? mask : NULL,
                 .mask_sequence = ROWS * (BEFORE + ROWS),
                 .mask_row = BEFORE + ROWS,
                 .sequences = SEQUENCES,
                 .rows = ROWS,
                 .at = BEFORE};
    run_layers(&stack, &step, 0, 2, 1 + masked);
    tell(rotated ? "rotated layers" : "layers", head_width, hidden, size * sizeof(float));
    tell("cache", head_width, cache, 4 * SEQUENCES * cached * sizeof(float));
  }
}

int main(void) {
#ifdef __AMX_INT8__
  if (syscall(SYS_arch_prctl, 0x1023, 18)) return 1; /* Permission to use matrix tiles. */
#endif
  for (int kind = SINGLE; kind <= EIGHT_BY_SIXTEEN; kind++) {
    Matrix w = matrix(kind, 96, 112);
    for (int64_t rows = 1; rows < 30; rows++) {
      float *x = numbers(rows * w.k, 2), *made = numbers(rows * w.n, 0);
      multiply(&w, x, rows, made, w.n, 1 + rows % 2);
      tell("product", kind * 100 + rows, made, rows * w.n * sizeof(float));
    }
  }
  for (int64_t width = 16; width <= 128; width *= 2) {
    layers(width, SINGLE, 0);
    layers(width, HALF, 0);
    layers(width, SIXTEEN_BITS, 1);
  }
  for (int64_t n = 5; n < 200; n += 31) {
    float *row = numbers(n, 9);
    log_softmax(row, 1, n, NULL, 0);
    tell("log-probabilities", n, row, n * sizeof(float));
  }
  for (int kind = EIGHT_BITS; kind <= EIGHT_BY_SIXTEEN; kind++) {
    Matrix w = matrix(kind, 96, 192); /* Matrix tiles hold 64 inputs. */
    for (int64_t rows = 1; rows < 80; rows += rows < 40 ? 1 : 13) {
      float *x = numbers(rows * w.k, 2), *made = numbers(rows * w.n, 0);
      multiply(&w, x, rows, made, w.n, 1 + rows % 2);
      tell("wide product", kind * 100 + rows, made, rows * w.n * sizeof(float));
    }
  }
  for (int64_t views = 2; views < 4; views++) {
    enum { N = 200, AT = 5, TRIED = 11 };
    float *drafted = numbers(views * AT * N, 9), *grid = numbers(TRIED * views, 1);
    float sums[2 * TRIED] = {0};
    for (int i = 0; i < TRIED * views; i++) grid[i] *= grid[i];
    log_softmax(drafted, views * AT, N, NULL, 0);
    History history = {drafted, numbers(AT * N, 9), grid, sums, AT * N, N, N, views, AT, N,
                       TRIED,   64,                 8};
    int best = weigh_mixtures(&history);
    tell("mixtures", 100 * views + best, sums, sizeof sums);
  }
  return 0;
}
