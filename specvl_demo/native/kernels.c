/* A Llama-type decoder's layers, products of rows with a matrix, and attention, for processors with
 * AVX2 or AVX-512 and for 64-bit ARM. `build_kernels.py` builds this file, `kernels.py` calls it.
 *
 * A matrix is packed in groups of 32 outputs: whatever a group reads lies in one stream, and is
 * fetched before it is used. Otherwise memory is idle while sums are computed, and every row costs
 * time although the matrix is read only once for all of them.
 *
 * Each sum belongs to one row and adds its terms in a fixed order, with the same roundings on every
 * processor. So a row's bits depend neither on the rows beside it, nor on the number of threads,
 * nor on the width of registers.
 */
#include "vectors.h"

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

static inline int64_t fewer(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t more(int64_t a, int64_t b) { return a > b ? a : b; }

/* Products. */

#define GROUP 32 /* Outputs of a matrix that lie side by side. */
#define VECTORS (GROUP / LANES)
#define MAX_ROWS (LANES == 16 ? 14 : 6) /* Of a tile, whose sums are kept in registers. */
#define FEW_ROWS 16                     /* To share them among threads takes longer. */
#define MIN_TILED 3                     /* With fewer rows, matrix tiles take longer. */
#define MOST_ROWS 32                    /* Of any tile. */
#define TILE_BYTES 64                   /* Of each of a matrix tile's 16 rows. */
#define SPLIT (BYTE_ZERO == 128)        /* Rows of 16 bits are two of bytes. */
const int bytes_at_once = BYTES_AT_ONCE, byte_zero = BYTE_ZERO, split_rows = SPLIT,
          split_weights = TILES ? TILE_BYTES : 0;

enum { SINGLE, HALF, EIGHT_BITS, SIXTEEN_BITS, EIGHT_BY_SIXTEEN, SPLIT_SIXTEEN };

/* A packed matrix [n, k]: [n / 32, k / together, 32, together] numbers. Floats are summed in
 * float32, and `unit` is the number that one stands for.
 *
 * Integers have `step` [n], the number that one stands for, and `start` [n], what sums begin with.
 * EIGHT_BITS: rows are rounded to 8 bits too, and `unit` is the number that one stands for in them;
 * without one (0), a 127th of each row's largest number. Otherwise rows have 16 bits, and `unit`
 * times a row's length is the least number that one stands for in it, with which no sum overflows.
 *
 * A number of 16 bits may be split in two bytes, high * 256 + low, and its products with another in
 * two sums: with integers nothing is lost. Then high bytes of rows are counted from -128, and each
 * group of SPLIT_SIXTEEN has [k / 4, 32, 4] high bytes before as many low ones.
 *
 * A group lies so, w[output, input], from its first inputs to its last:
 *
 *   together 1:  w[0,0]  w[1,0] .. w[31,0]  | w[0,1]  w[1,1] .. w[31,1]  | ..
 *   together 2:  w[0,0]  w[0,1]  w[1,0]  w[1,1] .. w[31,0]  w[31,1]  | w[0,2]  w[0,3] .. | ..
 *   together 4:  w[0,0..3]  w[1,0..3] .. w[31,0..3]  | w[0,4..7] .. | ..
 *
 * One step of a product reads what lies between two bars, and of every row as many inputs.
 */
typedef struct {
  const void *packed;
  const int32_t *start;
  const float *step;
  int64_t k, n;
  float unit;
  int32_t kind;
} Matrix;

INLINE int bytes_of(int kind) {
  return kind == SINGLE ? 4 : kind == EIGHT_BITS || kind == EIGHT_BY_SIXTEEN ? 1 : 2;
}

/* Into how many bytes numbers of rows are split, each a word of four inputs. */
INLINE int planes_of(int kind) {
  return (kind == EIGHT_BY_SIXTEEN && SPLIT) || kind == SPLIT_SIXTEEN ? 2 : 1;
}

/* Inputs that lie side by side in a row, and for each output. */
INLINE int together_of(int kind) {
  return kind <= HALF ? 1 : planes_of(kind) == 2 ? 4 : kind == EIGHT_BITS ? BYTES_AT_ONCE : 2;
}

/* Some rows with a group of outputs. Rows lie side by side, [k / together, planes, rows] words, each
 * of a float or of as many integers, which have a scale for each row. For matrix tiles, they are
 * [k / 64, planes, per_tile, 64] bytes. Three rows r, s, t, of two planes (high and low bytes):
 *
 *   registers:     r s t high | r s t low | r s t high | ..      a word of 4 inputs each
 *                  ---- inputs 0 to 3 ---- | - 4 to 7 -
 *   matrix tiles:  r high | s high | t high | r low | s low | t low | ..     64 inputs each
 */
typedef struct {
  const Matrix *matrix;
  int64_t group;
  const void *x;
  const float *scale;
  float *out; /* [rows, 32], rows apart by `stride`. */
  int64_t stride;
  int add; /* To what `out` has. */
  int64_t rows, per_tile;
} Tile;

/* Fetch what is read after p in two steps: early into the second cache, and from there into the
 * first, which has little room beside the rows. With more rows, sums take longer. */
INLINE void fetch(const char *p, int rows) {
  __builtin_prefetch(p + (rows > 2 ? 2048 : 1024), 0, 3);
  __builtin_prefetch(p + (rows > 2 ? 24576 : 16384), 0, 2);
}

INLINE Ints take(int kind, const char *p, int v) {
  if (kind == HALF) return (Ints)from_half(p + v * 2 * LANES);
  return bytes_of(kind) == 1 && together_of(kind) == 2 ? from_bytes(p + v * 2 * LANES) : (Ints)load(p + v * 4 * LANES);
}

INLINE Ints add_product(int kind, Ints sum, Ints row, Ints weights) {
  if (kind <= HALF) return (Ints)fused((Floats)row, (Floats)weights, (Floats)sum);
  return together_of(kind) == 4 || kind == EIGHT_BITS ? dot_bytes(sum, row, weights)
                                                      : dot_pairs(sum, row, weights);
}

/* Write or add a row's outputs from number `at` of the group, out of its sums. */
INLINE void put(const Tile *t, int floats, int64_t row, int64_t at, Ints sum) {
  const Matrix *w = t->matrix;
  float *out = t->out + row * t->stride + at, scale = floats ? 1 : t->scale[row];
  Floats y = floats ? (Floats)sum * w->unit
                    : __builtin_convertvector(sum, Floats) * load(w->step + t->group * GROUP + at);
  store(out, t->add ? fused(y, all(scale), load(out)) : y * scale);
}

/* So many vectors of outputs, from number `at` of the group. */
INLINE void tile_part(int kind, int rows, int vectors, int at, const Tile *t) {
  const Matrix *w = t->matrix;
  int floats = kind <= HALF, bytes = bytes_of(kind), together = together_of(kind);
  int64_t first = t->group * GROUP + at;
  const char *p = (const char *)w->packed + t->group * w->k * GROUP * bytes + at * together * bytes;
  const int32_t *x = t->x;
  const int planes = planes_of(kind);
  Ints sum[2][MAX_ROWS][VECTORS], weights[VECTORS];
  /* 1. Sums begin with `start`: of two planes, those of the low bytes. */
  EACH (r, rows)
    EACH (v, vectors) {
      sum[0][r][v] = sum[1][r][v] = (Ints){0};
      if (!floats) sum[planes - 1][r][v] = (Ints)load(w->start + first + v * LANES);
    }
  /* 2. Weights are read once for all rows, each of which gives one word to all of them. */
  for (int64_t i = 0; i < w->k; i += together, p += GROUP * together * bytes) {
    if (at == 0) fetch(p, rows);
    if (at == 0 && GROUP * together * bytes > 64) fetch(p + 64, rows);
    EACH (v, vectors) weights[v] = take(kind, p, v);
    EACH (s, planes)
      EACH (r, rows) {
        Ints row = *x++ + (Ints){0};
        EACH (v, vectors) sum[s][r][v] = add_product(kind, sum[s][r][v], row, weights[v]);
      }
  }
  /* 3. High and low bytes are one number again. */
  EACH (r, rows)
    EACH (v, vectors) {
      Ints whole = planes == 2 ? (sum[0][r][v] << 8) + sum[1][r][v] : sum[0][r][v];
      put(t, floats, r, at + v * LANES, whole);
    }
}

/* Less than a group at a time where registers do not hold the sums of a whole one. */
INLINE void tile_of(int kind, int rows, const Tile *t) {
  if (rows > MAX_ROWS) return;
  int sums = rows * planes_of(kind) * VECTORS;
  int vectors = sums <= SUMS ? VECTORS : sums <= 2 * SUMS ? VECTORS / 2 : VECTORS / 4;
  for (int at = 0; at < GROUP; at += vectors * LANES) tile_part(kind, rows, vectors, at, t);
}

INLINE void tile_rows(int kind, int64_t rows, const Tile *t) {
#define ROWS(n) case n: return tile_of(kind, n, t);
  switch (rows) {
    ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7)
    ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
  }
}

#if TILES
/* Matrix tiles 0 and 1 sum products of 16 rows of bytes with both halves of a group, 2 and 3 those
 * of the other rows; 4 and 5 hold these rows, 6 and 7 the weights:
 *
 *                       6: outputs 0 to 15    7: 16 to 31
 *   4: rows 0 to 15            0                   1
 *   5: 16 to 31                2                   3
 */
static void configure_tiles(int64_t rows) {
  struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } config = {.palette = 1};
  int64_t first = fewer(rows, 16), second = more(rows - first, 1);
  for (int i = 0; i < 8; i++)
    config.bytes[i] = TILE_BYTES, config.rows[i] = i > 5 ? 16 : i < 2 || i == 4 ? first : second;
  /* Compilers know neither that all of it is read, nor that tiles read memory. */
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

#define ADD_PRODUCT(sum, rows, weights) \
  if (unsigned_weights) { \
    _tile_dpbuud(sum, rows, weights); \
  } else { \
    _tile_dpbusd(sum, rows, weights); \
  }

/* The products of a tile's rows of bytes with a group: sums [rows, 32]. */
INLINE void sum_bytes(const char *w, int64_t k, const char *x, int64_t rows, int unsigned_weights,
                      int32_t *sums) {
  int64_t first = fewer(rows, 16);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < k; i += TILE_BYTES, w += GROUP * TILE_BYTES, x += rows * TILE_BYTES) {
    for (int at = 0; at < GROUP * TILE_BYTES; at += 64) __builtin_prefetch(w + 8192 + at, 0, 3);
    _tile_loadd(4, x, TILE_BYTES);
    _tile_loadd(6, w, GROUP * 4);
    _tile_loadd(7, w + GROUP * 2, GROUP * 4);
    ADD_PRODUCT(0, 4, 6);
    ADD_PRODUCT(1, 4, 7);
    if (rows == first) continue;
    _tile_loadd(5, x + first * TILE_BYTES, TILE_BYTES);
    ADD_PRODUCT(2, 5, 6);
    ADD_PRODUCT(3, 5, 7);
  }
  _tile_stored(0, sums, GROUP * 4);
  _tile_stored(1, sums + GROUP / 2, GROUP * 4);
  if (rows == first) return;
  _tile_stored(2, sums + first * GROUP, GROUP * 4);
  _tile_stored(3, sums + first * GROUP + GROUP / 2, GROUP * 4);
}

static void matrix_tile(const Tile *t) {
  const Matrix *w = t->matrix;
  int64_t rows = planes_of(w->kind) * t->per_tile, second = rows - t->per_tile;
  const char *p = (const char *)w->packed + t->group * w->k * GROUP * bytes_of(w->kind);
  int32_t sums[2][MOST_ROWS * GROUP];
  /* 1. High bytes of weights, or the only ones, with all rows: high bytes before low ones. */
  sum_bytes(p, w->k, t->x, rows, 0, sums[0]);
  if (w->kind == SPLIT_SIXTEEN) sum_bytes(p + w->k * GROUP, w->k, t->x, rows, 1, sums[1]);
  /* 2. x w = (256 x' + x") (256 w' + w") = (256 x' w' + x" w' + x' w") 256 + x" w". */
  for (int64_t r = 0; r < t->rows; r++)
    for (int at = 0; at < GROUP; at += LANES) {
      int64_t high = r * GROUP + at, low = high + second * GROUP;
      Ints sum = (Ints)load(sums[0] + low);
      if (second) sum += (Ints)load(sums[0] + high) << 8;
      if (w->kind == SPLIT_SIXTEEN)
        sum = ((sum + (Ints)load(sums[1] + high)) << 8) + (Ints)load(sums[1] + low);
      sum += (Ints)load(w->start + t->group * GROUP + at);
      put(t, 0, r, at, sum);
    }
}
#endif

/* The number that one stands for in a row [k] of integers of 16 bits, or that its numbers are
 * divided by for 8 bits; not a number if one of the row is not finite. */
static float scale_of(const Matrix *w, const float *row) {
  Floats size = all(1e-20f);
  for (int64_t i = 0; i < w->k; i += LANES) size = larger(size, absolute(load(row + i)));
  float squares = sum_of_squares(row, w->k), doubt = squares - squares;
  float largest = largest_lane(size) + doubt;
  if (w->kind == EIGHT_BITS) return w->unit == 0 ? largest : 1 + doubt;
  float least = sqrtf(squares) * w->unit;
  return least > largest / 32767 ? least : largest / 32767;
}

/* Round a row of `count` in a tile; `to` is where its first word goes. */
INLINE void round_row(int kind, float unit, const float *row, float scale, int64_t k, char *to,
                      int64_t count, int tiled) {
  const int eight = kind == EIGHT_BITS, together = together_of(kind), planes = planes_of(kind);
  Floats inverse = all(1 / (eight ? unit == 0 ? (float)(1 / 127.0) : unit : scale));
  for (int64_t i = 0; i < k; i += LANES) {
    Floats x = load(row + i);
    /* 1. To integers: of 8 bits within bounds, and around BYTE_ZERO. With a unit, the scale is 1 or
     * not a number. */
    x = eight ? fused(unit == 0 ? x / scale : x * scale, inverse, all(128)) : x * inverse;
    if (eight) x = larger(choose(x < 255.0f, x, all(255)), all(0));
    Ints n = nearest(x) - (eight ? 128 - BYTE_ZERO : 0);
    /* 2. To words: of bytes (of 16 bits first the high ones, then the low), or of pairs. */
    for (int s = 0; s < planes; s++) {
      int32_t words[LANES / 2];
      if (together == 4) {
        Ints byte = planes == 1 || s == 1 ? n : (n >> 8) + 128;
        Narrow8 narrow = __builtin_convertvector(byte, Narrow8);
        memcpy(words, &narrow, sizeof narrow);
      } else {
        Narrow16 narrow = __builtin_convertvector(n, Narrow16);
        memcpy(words, &narrow, sizeof narrow);
      }
      /* 3. To their places, see Tile. */
      if (tiled)
        memcpy(to + (i / TILE_BYTES * planes + s) * count * TILE_BYTES + i % TILE_BYTES, words,
               LANES);
      else
        for (int j = 0; j < LANES / together; j++)
          ((int32_t *)to)[((i / together + j) * planes + s) * count] = words[j];
    }
  }
}

/* How the rows of a product are normed first: x / sqrt(|x|^2 + root^2), times `weight` [k] if there
 * is one. `normed` has room for one row. */
typedef struct {
  const float *weight;
  float root, *normed;
} Norm;

static const float *norm_row(const Norm *norm, const float *row, int64_t k) {
  float by = 1 / sqrtf(sum_of_squares(row, k) + norm->root * norm->root);
  for (int64_t i = 0; i < k; i += LANES) {
    Floats x = load(row + i) * by;
    store(norm->normed + i, norm->weight ? x * load(norm->weight + i) : x);
  }
  return norm->normed;
}

/* Groups or rows first .. end. */
typedef struct {
  int64_t first, end;
} Span;

/* Those of n that are this thread's. */
static Span share_of(int64_t n) {
  int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  return (Span){n * thread / threads, n * (thread + 1) / threads};
}

/* Rows of a product as tiles read them, each tile's side by side, and the scales of integers. */
typedef struct {
  float *scale;
  char *x;
  int64_t rows, per_tile;
  int tiled; /* For matrix tiles. */
} Rows;

static int64_t row_bytes(const Matrix *w) {
  return w->k / together_of(w->kind) * planes_of(w->kind) * 4;
}

#define SPARE 32 /* Numbers of 32 bits beside those of twice the rows. */

/* As many tiles as are needed, of nearly equal size, in memory for twice the rows. */
static Rows rows_in(const Matrix *w, float *memory, int64_t rows) {
  int bytes = w->kind == EIGHT_BITS || w->kind == EIGHT_BY_SIXTEEN;
  int tiled =
      TILES && (w->kind == SPLIT_SIXTEEN || (bytes && rows >= MIN_TILED && w->k % TILE_BYTES == 0));
  int64_t most = tiled ? MOST_ROWS / planes_of(w->kind) : MAX_ROWS;
  int64_t tiles = (rows + most - 1) / most;
  uintptr_t x = ((uintptr_t)(memory + rows) + 63) / 64 * 64;
  return (Rows){memory, (char *)x, rows, (rows + tiles - 1) / tiles, tiled};
}

/* Arrange rows `own` of x [rows, k]; `norm` may be none. Inputs are multiples of 16, except for
 * floats without a norm. */
static void arrange(const Matrix *w, const float *x, const Norm *norm, Span own, Rows *to) {
  for (int64_t r = own.first; r < own.end; r++) {
    int64_t first = r / to->per_tile * to->per_tile, count = fewer(to->per_tile, to->rows - first);
    const float *row = norm ? norm_row(norm, x + r * w->k, w->k) : x + r * w->k;
    char *at = to->x + first * row_bytes(w) + (r - first) * (to->tiled ? TILE_BYTES : 4);
    if (w->kind <= HALF) {
      for (int64_t i = 0; i < w->k; i++) ((float *)at)[i * count] = row[i];
      continue;
    }
    float scale = to->scale[r] = scale_of(w, row);
    if (to->tiled) count = to->per_tile;
#define ROUND(kind) round_row(kind, w->unit, row, scale, w->k, at, count, to->tiled)
    switch (w->kind) {
      case EIGHT_BITS: ROUND(EIGHT_BITS); break;
      case SIXTEEN_BITS: ROUND(SIXTEEN_BITS); break;
      default: ROUND(EIGHT_BY_SIXTEEN); /* Those of SPLIT_SIXTEEN are alike. */
    }
  }
}

/* Before a thread's products of these rows; without any, after them. */
static void set_tiles(const Matrix *w, const Rows *x) {
#if TILES
  if (!x) _tile_release();
  if (x && x->tiled) configure_tiles(x->per_tile * planes_of(w->kind));
#endif
}

/* A group's outputs for the tile that begins at row `first`: out [.., 32], rows apart by `stride`.
 */
static void multiply_group(const Matrix *w, int64_t group, const Rows *x, int64_t first, float *out,
                           int64_t stride, int add) {
  int64_t rows = fewer(x->per_tile, x->rows - first);
  Tile t = {w,   group, x->x + first * row_bytes(w), x->scale + first, out, stride, add,
            rows, x->per_tile};
#if TILES
  if (x->tiled) return matrix_tile(&t);
#endif
  switch (w->kind) {
    case SINGLE: return tile_rows(SINGLE, rows, &t);
    case HALF: return tile_rows(HALF, rows, &t);
    case EIGHT_BITS: return tile_rows(EIGHT_BITS, rows, &t);
    case SIXTEEN_BITS: return tile_rows(SIXTEEN_BITS, rows, &t);
    case EIGHT_BY_SIXTEEN: return tile_rows(EIGHT_BY_SIXTEEN, rows, &t);
  }
}

/* Write the product of rows into out, or add it; for all threads of a region. */
static void multiply_rows(const Matrix *w, const Rows *rows, float *out, int64_t stride, int add) {
#pragma omp for schedule(static)
  for (int64_t group = 0; group < w->n / GROUP; group++)
    for (int64_t first = 0; first < rows->rows; first += rows->per_tile)
      multiply_group(w, group, rows, first, out + first * stride + group * GROUP, stride, add);
}

/* out[r * stride ...] = x[r] W^T for x [rows, k]; 0 without memory. */
int multiply(const Matrix *w, const float *x, int64_t rows, float *out, int64_t stride,
             int threads) {
  float *memory = malloc(2 * rows * row_bytes(w) + (rows + SPARE) * sizeof(float));
  if (!memory) return 0;
  Rows arranged = rows_in(w, memory, rows);
  if (rows <= FEW_ROWS) arrange(w, x, NULL, (Span){0, rows}, &arranged);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    if (rows > FEW_ROWS) {
      arrange(w, x, NULL, share_of(rows), &arranged);
#pragma omp barrier
    }
    set_tiles(w, &arranged);
    multiply_rows(w, &arranged, out, stride, 0);
    set_tiles(NULL, NULL);
  }
  free(memory);
  return 1;
}

/* Layers. */

/* One layer. `bias` of qkv [qkv.n] and the norms' weights may be none. With `kv`, it attends to
 * features: `qkv` makes only queries, `kv` makes keys and values of the features, nothing is
 * rotated, and queries and keys are normed in each head, queries times `head_norm` [head_width].
 * Without, `head_norm` [heads + kv_heads, head_width] is of queries and keys, which are normed if
 * it is given, and there is no `bias`. */
typedef struct {
  Matrix qkv, out, gate_up, down;
  const float *bias, *norm, *after_norm;
  const Matrix *kv;
  const float *head_norm;
} Layer;

/* Layers of one size. Rotary pairs lie side by side in the outputs of qkv. `enter` maps embeddings
 * to what layers add to, and `leave` maps that back once it is normed; without `leave`, the last
 * norm has the weight `norm`. All three may be none. */
typedef struct {
  const Layer *layers;
  const Matrix *enter, *leave;
  const float *norm;
  int64_t width, heads, kv_heads, head_width;
  float root, scale; /* Of width times epsilon, and of scores. */
} Stack;

/* New rows of several sequences, which all have `at` rows in the cache. All strides in floats.
 * Layers skip the first `holes` rows of the cache, those that attend to features only the first
 * one.
 *
 * Row r of a head's keys lies at cache + layer * `layer` + sequence * `sequence` + head * `head` +
 * r * `row`:
 *
 *   | holes | .. rows before the new ones .. | new rows |
 *   0                                        at         at + rows
 */
typedef struct {
  const float *embedded;    /* [sequences * rows, width]: if given, `enter` makes x of it. */
  float *x;                 /* [sequences * rows, width]: what layers add to. */
  const float *input;       /* [sequences * rows, qkv.k]: if given, what the first attention reads
                               as it is, instead of x. */
  float *hidden;            /* [sequences * rows, width]: if given, receives x, normed. */
  const float *cos_sin;       /* [.., head_width]: cosine and sine of every rotary pair. */
  float *cache;             /* Of keys, rows [head_width]; values lie `to_values` behind. */
  const int64_t *positions; /* [sequences, rows], below `n_positions`; without, cos_sin is of the rows. */
  const float *features;    /* [sequences * rows, kv.k]: the features before the rows. */
  int64_t n_positions, position_sequence;
  int64_t layer, sequence, head, row, to_values;
  const float *mask; /* Additive [sequences, rows, at + rows]; without one, rows see all before. */
  int64_t mask_sequence, mask_row;
  int64_t sequences, rows, at, holes;
} Step;

/* Attention.
 *
 * Every sum over keys adds them in the order of the cache, and a key that a row does not see adds
 * zero. The keys of a node's path are cached in the order of the text, so its result has the bits
 * of a plain step, whatever other nodes lie between them. */

#define FEW_QUERIES 3 /* At a time, whose sums over values are kept in registers. */
#define MANY_QUERIES 6

/* Turn scores [seen] into weights whose largest is 1, up to `end` with zeros; `scores` has room for
 * whole vectors. */
static void weigh(float *scores, int64_t seen, int64_t end) {
  Floats size = all(-3.4e38f);
  int64_t whole = (end + LANES - 1) / LANES * LANES;
  for (int64_t i = seen; i < whole; i++) scores[i] = -3.4e38f;
  for (int64_t i = 0; i < whole; i += LANES) size = larger(size, load(scores + i));
  float largest = largest_lane(size);
  for (int64_t i = 0; i < whole; i += LANES)
    store(scores + i, exponential(load(scores + i) - largest));
}

/* The products of some queries with 16 keys. */
INLINE void score(int width, int queries, const float *const query[], const float *const key[16],
                  Sixteen *products) {
  Sixteen each[2][4];
  for (int n = 0; n < 4; n++) {
    Sixteen sum[2][4];
    EACH (i, width / LANES)
      EACH (j, 4) {
        Floats numbers = load(key[4 * n + j] + i * LANES);
        EACH (q, queries) {
          Floats part = load(query[q] + i * LANES), *at = &sum[q][j].part[i % PARTS];
          *at = i < PARTS ? part * numbers : fused(part, numbers, *at);
        }
      }
    EACH (q, queries) each[q][n] = blocks_each(sum[q]);
  }
  EACH (q, queries) products[q] = fold_each(each[q]);
}

/* So many queries of a sequence at a time that share a head of keys, from `first`; the last one
 * again where there are fewer. queries, out: [rows, heads, width]. scores: [many, room]. */
INLINE void attend_some(int width, int many, const Stack *m, const Step *s, int64_t layer,
                        int64_t sequence, int64_t head, int64_t first, const float *queries,
                        float *out, float *scores, int64_t room) {
  const float *keys = s->cache + layer * s->layer + sequence * s->sequence + head * s->head;
  const float *values = keys + s->to_values, *masks[MANY_QUERIES], *query[MANY_QUERIES];
  const int together = LANES == 16 && many % 2 == 0 ? 2 : 1;
  queries += sequence * s->rows * m->heads * width, out += sequence * s->rows * m->heads * width;
  int64_t groups = m->heads / m->kv_heads, last = groups * s->rows - 1;
  int64_t seen[MANY_QUERIES], column[MANY_QUERIES], end = s->mask ? s->at + s->rows : 0;
  /* 1. Where each query lies, and how many keys it sees. */
  for (int q = 0; q < many; q++) {
    int64_t at = fewer(first + q, last), row = at / groups;
    column[q] = (row * m->heads + head * groups + at % groups) * width;
    query[q] = queries + column[q];
    masks[q] = s->mask ? s->mask + sequence * s->mask_sequence + row * s->mask_row : NULL;
    seen[q] = s->mask ? end : s->at + row + 1;
    end = more(end, seen[q]);
  }
  /* 2. Scores, 16 keys at a time, the last one again where there are fewer. */
  for (int64_t i = 0; i < end; i += 16) {
    const float *key[16];
    for (int j = 0; j < 16; j++) key[j] = keys + fewer(i + j, end - 1) * s->row;
    for (int q = 0; q < many; q += together) {
      Sixteen products[2];
      score(width, together, query + q, key, products);
      EACH (n, together) {
        Sixteen added = {{{0}}};
        if (masks[q + n]) memcpy(&added, masks[q + n] + i, fewer(end - i, 16) * sizeof(float));
        EACH (p, PARTS) {
          Floats y = products[n].part[p] * m->scale;
          store(scores + (q + n) * room + i + p * LANES, masks[q + n] ? y + added.part[p] : y);
        }
      }
    }
  }
  /* 3. Weights. */
  for (int q = 0; q < many; q++) weigh(scores + q * room, seen[q], end);
  /* 4. The mean of the values, by these weights: some queries and vectors at a time. */
  const int vectors = width < 4 * LANES ? width / LANES : 4;
  for (int from = 0; from < many; from += FEW_QUERIES)
    for (int at = 0; at < width; at += vectors * LANES) {
      Floats sum[FEW_QUERIES][4], total[FEW_QUERIES], numbers[4];
      EACH (q, FEW_QUERIES) total[q] = (Floats){0};
      EACH (q, FEW_QUERIES)
        EACH (v, vectors) sum[q][v] = (Floats){0};
      for (int64_t i = 0; i < end; i++) {
        EACH (v, vectors) numbers[v] = in_register(load(values + i * s->row + at + v * LANES));
        EACH (q, FEW_QUERIES) {
          Floats weight = all(scores[(from + q) * room + i]);
          total[q] += weight;
          EACH (v, vectors) sum[q][v] = fused(weight, numbers[v], sum[q][v]);
        }
      }
      EACH (q, FEW_QUERIES)
        EACH (v, vectors) store(out + column[from + q] + at + v * LANES, sum[q][v] / total[q]);
    }
}

/* Attention of all rows, out of queries [sequences * rows, heads, head_width] into `out`. */
static void attend(const Stack *m, const Step *s, int64_t layer, const float *queries, float *out,
                   float *scores, int64_t room) {
  int64_t shared = m->heads / m->kv_heads * s->rows;
  int64_t many = shared <= FEW_QUERIES ? FEW_QUERIES : MANY_QUERIES;
  int64_t parts = (shared + many - 1) / many;
#pragma omp for schedule(static)
  for (int64_t task = 0; task < s->sequences * m->kv_heads * parts; task++) {
    int64_t head = task / parts % m->kv_heads, sequence = task / parts / m->kv_heads;
    int64_t first = task % parts * many;
#define ATTEND(width, n) \
  attend_some(width, n, m, s, layer, sequence, head, first, queries, out, scores, room)
#define WIDTH(n) \
  case n: ATTEND(n, FEW_QUERIES); break; \
  case n + 1: ATTEND(n, MANY_QUERIES); break;
    switch (m->head_width + (shared - first > FEW_QUERIES)) {
      WIDTH(16) WIDTH(32) WIDTH(64) WIDTH(128)
    }
  }
}

/* Rotate the rotary pairs of a vector. */
INLINE Floats rotate(Floats x, Floats cos_sin) {
  Ints minus = (Ints)SHUFFLE(all(-0.0f), all(0), 0, 4, 0, 4);
  Floats other = SHUFFLE(x, x, 1, 0, 3, 2) * SHUFFLE(cos_sin, cos_sin, 1, 1, 3, 3);
  return fused(x, SHUFFLE(cos_sin, cos_sin, 0, 0, 2, 2), (Floats)((Ints)other ^ minus));
}

/* Put 32 outputs of qkv [count, 32], of the rows from `first` and from `column`, where they belong:
 * queries [.., heads, head_width], and rotated keys and values in the cache. */
static void place(const Stack *m, const Step *s, int64_t layer, const float *outputs, int64_t count,
                  int64_t first, int64_t column, float *queries) {
  const float *bias = m->layers[layer].bias;
  for (int64_t end = column + GROUP; column < end; column += LANES, outputs += LANES) {
    int64_t head = column / m->head_width, offset = column % m->head_width;
    for (int64_t i = 0; i < count; i++) {
      int64_t row = first + i, sequence = row / s->rows, position = row;
      if (s->positions) position = s->positions[sequence * s->position_sequence + row % s->rows];
      Floats x = load(outputs + i * GROUP);
      if (bias) x += load(bias + column);
      if (head < m->heads + m->kv_heads)
        x = rotate(x, load(s->cos_sin + position * m->head_width + offset));
      float *to = queries + (row * m->heads + head) * m->head_width;
      if (head >= m->heads) {
        int64_t at = head - m->heads, values = at >= m->kv_heads;
        to = s->cache + layer * s->layer + sequence * s->sequence + values * s->to_values +
             (at - values * m->kv_heads) * s->head + (s->at + row % s->rows) * s->row;
      }
      store(to + offset, x);
    }
  }
}

/* to = silu(gate) * up, for [count, 32], rows of `to` apart by `stride`. */
static void gated(const float *gate, const float *up, int64_t count, float *to, int64_t stride) {
  for (int64_t i = 0; i < count; i++)
    for (int64_t j = 0; j < GROUP; j += LANES) {
      Floats x = load(gate + i * GROUP + j), small = exponential(-absolute(x));
      Floats share = choose(x >= 0.0f, all(1), small) / (1.0f + small);
      store(to + i * stride + j, x * share * load(up + i * GROUP + j));
    }
}

/* What a layer's parts leave to the next ones: queries, mixed [rows, heads, head_width] and inner
 * [rows, down.k]; and what a thread needs. */
typedef struct {
  float *queries, *mixed, *inner, *scores;
  int64_t room;
  float *normed;
  float *arranged; /* All threads' if there are more than FEW_ROWS, else each one's. */
} Work;

static Rows share(const Matrix *w, const float *x, int64_t rows, const Norm *norm,
                  const Work *work) {
  Rows to = rows_in(w, work->arranged, rows);
  arrange(w, x, norm, rows > FEW_ROWS ? share_of(rows) : (Span){0, rows}, &to);
  if (rows > FEW_ROWS) {
#pragma omp barrier
  }
  set_tiles(w, &to);
  return to;
}

/* Divide a head's numbers by their length, and multiply them by `weight` if there is one. */
static void norm_head(const Stack *m, const float *from, const float *weight, float *to) {
  float root = m->root * m->root * m->head_width / m->width;
  float length = sqrtf(sum_of_squares(from, m->head_width) + root);
  for (int64_t i = 0; i < m->head_width; i += LANES) {
    Floats x = load(from + i) / length;
    store(to + i, weight ? x * load(weight + i) : x);
  }
}

/* Make queries of the rows, and write keys and values of the features before them. */
static void read_features(const Stack *m, const Step *s, int64_t layer, const Work *work) {
  const Layer *l = m->layers + layer;
  int64_t rows = s->sequences * s->rows, width = m->head_width;
  Norm norm = {l->norm, m->root, work->normed};
  Rows x = share(l->kv, s->features, rows, NULL, work);
  multiply_rows(l->kv, &x, work->inner, l->kv->n, 0);
#pragma omp for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    float *to =
        s->cache + layer * s->layer + r / s->rows * s->sequence + (s->at + r % s->rows) * s->row;
    const float *from = work->inner + r * l->kv->n;
    for (int64_t head = 0; head < m->kv_heads; head++, from += width)
      norm_head(m, from, NULL, to + head * s->head);
    for (int64_t head = 0; head < m->kv_heads; head++, from += width)
      memcpy(to + s->to_values + head * s->head, from, width * sizeof(float));
  }
  x = share(&l->qkv, s->x, rows, &norm, work);
  multiply_rows(&l->qkv, &x, work->queries, l->qkv.n, 0);
#pragma omp for schedule(static)
  for (int64_t head = 0; head < rows * m->heads; head++)
    norm_head(m, work->queries + head * width, l->head_norm, work->queries + head * width);
}

/* Make queries of the rows, and write their keys and values, queries and keys normed in each head.
 */
static void read_normed_rows(const Stack *m, const Step *s, int64_t layer, const Work *work) {
  const Layer *l = m->layers + layer;
  int64_t rows = s->sequences * s->rows, normed = (m->heads + m->kv_heads) * m->head_width;
  Norm norm = {l->norm, m->root, work->normed};
  Rows x = share(&l->qkv, s->input ? s->input : s->x, rows, s->input ? NULL : &norm, work);
  multiply_rows(&l->qkv, &x, work->inner, l->qkv.n, 0);
#pragma omp for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    float *outputs = work->inner + r * l->qkv.n;
    for (int64_t at = 0; at < normed; at += m->head_width)
      norm_head(m, outputs + at, l->head_norm + at, outputs + at);
    for (int64_t column = 0; column < l->qkv.n; column += GROUP)
      place(m, s, layer, outputs + column, 1, r, column, work->queries);
  }
}

/* Make queries of the rows, and write their keys and values. */
static void read_rows(const Stack *m, const Step *s, int64_t layer, const Work *work) {
  const Layer *l = m->layers + layer;
  int64_t rows = s->sequences * s->rows;
  float outputs[MOST_ROWS * GROUP];
  Norm norm = {l->norm, m->root, work->normed};
  Rows x = share(&l->qkv, s->input ? s->input : s->x, rows, s->input ? NULL : &norm, work);
#pragma omp for schedule(static)
  for (int64_t group = 0; group < l->qkv.n / GROUP; group++)
    for (int64_t first = 0; first < rows; first += x.per_tile) {
      multiply_group(&l->qkv, group, &x, first, outputs, GROUP, 0);
      place(m, s, layer, outputs, fewer(x.per_tile, rows - first), first, group * GROUP,
            work->queries);
    }
}

static void run_layer(const Stack *m, const Step *whole, int64_t layer, int leads,
                      const Work *work) {
  const Layer *l = m->layers + layer;
  int64_t skipped = l->kv ? 1 : whole->holes, rows = whole->sequences * whole->rows;
  int64_t inner = l->down.k;
  float outputs[2][MOST_ROWS * GROUP];
  Norm after_norm = {l->after_norm, m->root, work->normed};
  /* 1. Of the cache, only what this layer does not skip. */
  Step own = *whole, *s = &own;
  own.cache += skipped * own.row, own.at -= skipped;
  if (own.mask) own.mask += skipped;
  if (!leads) own.input = NULL;
  /* 2. Queries, keys and values; attention. */
  if (l->kv)
    read_features(m, s, layer, work);
  else if (l->head_norm)
    read_normed_rows(m, s, layer, work);
  else
    read_rows(m, s, layer, work);
  attend(m, s, layer, work->queries, work->mixed, work->scores, work->room);
  /* 3. What it adds to the rows. */
  Rows x = share(&l->out, work->mixed, rows, NULL, work);
  multiply_rows(&l->out, &x, s->x, m->width, 1);
  /* 4. The inner layer: gate and up of a group side by side, so that neither is stored. */
  x = share(&l->gate_up, s->x, rows, &after_norm, work);
#pragma omp for schedule(static)
  for (int64_t group = 0; group < inner / GROUP; group++)
    for (int64_t first = 0; first < rows; first += x.per_tile) {
      multiply_group(&l->gate_up, group, &x, first, outputs[0], GROUP, 0);
      multiply_group(&l->gate_up, inner / GROUP + group, &x, first, outputs[1], GROUP, 0);
      gated(outputs[0], outputs[1], fewer(x.per_tile, rows - first),
            work->inner + first * inner + group * GROUP, inner);
    }
  x = share(&l->down, work->inner, rows, NULL, work);
  multiply_rows(&l->down, &x, s->x, m->width, 1);
}

/* Write x after the last norm. */
static void leave(const Stack *m, const Step *s, int64_t rows, const Work *work) {
  if (m->leave) {
    Norm norm = {NULL, m->root, work->normed};
    Rows x = share(m->leave, s->x, rows, &norm, work);
    multiply_rows(m->leave, &x, s->hidden, m->width, 0);
    return;
  }
#pragma omp for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    Norm norm = {m->norm, m->root, s->hidden + r * m->width};
    norm_row(&norm, s->x + r * m->width, m->width);
  }
}

/* Run layers first .. end: x is changed and the new rows' keys and values are written; 0 without
 * memory, 2 if a position is not below `n_positions`. A head's width is 16, 32, 64 or 128; numbers of
 * inputs are multiples of 16, and of outputs of 32. */
int run_layers(const Stack *m, const Step *s, int64_t first, int64_t end, int threads) {
  int64_t rows = s->sequences * s->rows, mixed = m->heads * m->head_width, inner = 0;
  int64_t most = more(mixed, m->width);
  /* 1. Positions may come from elsewhere. */
  for (int64_t r = 0; s->positions && r < rows; r++) {
    int64_t at = s->positions[r / s->rows * s->position_sequence + r % s->rows];
    if (at < 0 || at >= s->n_positions) return 2;
  }
  for (int64_t layer = first; layer < end; layer++) {
    const Layer *l = m->layers + layer;
    int64_t read = l->kv ? l->kv->n : l->head_norm ? l->qkv.n : 0;
    inner = more(inner, more(l->down.k, read));
    most = more(most, more(l->qkv.k, inner));
  }
  /* 2. All threads share rows [rows, most] as they are arranged, queries, mixed and inner; each has
   * scores, a normed row and, of few rows, its own arrangement. */
  int64_t room = (s->at + s->rows + 15) / 16 * 16, arranged = rows * (1 + most) + SPARE;
  int64_t shared = rows * (2 * mixed + inner) + arranged;
  int64_t each = MANY_QUERIES * room + most + (rows > FEW_ROWS ? 0 : arranged);
  float *memory = malloc((shared + threads * each) * sizeof(float));
  if (!memory) return 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    /* 3. Threads keep step at the barriers that end every `omp for`. */
    float *own = memory + shared + omp_get_thread_num() * each, *after = own + MANY_QUERIES * room;
    Work work = {memory + arranged,
                 memory + arranged + rows * mixed,
                 memory + arranged + 2 * rows * mixed,
                 own,
                 room,
                 after,
                 rows > FEW_ROWS ? memory : after + most};
    if (s->embedded) {
      Rows x = share(m->enter, s->embedded, rows, NULL, &work);
      multiply_rows(m->enter, &x, s->x, m->width, 0);
    }
    for (int64_t layer = first; layer < end; layer++) run_layer(m, s, layer, layer == first, &work);
    if (s->hidden) leave(m, s, rows, &work);
    set_tiles(NULL, NULL);
  }
  free(memory);
  return 1;
}

/* Turn rows x [rows, n] into log-probabilities; numbers at `never` are -inf first. */
void log_softmax(float *x, int64_t rows, int64_t n, const int64_t *never, int64_t n_never) {
  int64_t whole = n / 16 * 16;
  for (; rows > 0; rows--, x += n) {
    float rest[16];
    for (int64_t i = 0; i < n_never; i++) x[never[i]] = -INFINITY;
    /* What is left after whole vectors, in one of its own. */
    for (int64_t i = 0; i < 16; i++) rest[i] = whole + i < n ? x[whole + i] : -INFINITY;
    Floats size = load(rest);
    Sixteen sum = {{{0}}};
    for (int64_t i = 0; i < n; i += LANES)
      size = larger(size, load(i < whole ? x + i : rest + i - whole));
    float largest = largest_lane(size);
    for (int64_t i = 0; i < n; i += 16)
      for (int p = 0; p < PARTS; p++)
        sum.part[p] += exponential(load((i < whole ? x + i : rest) + p * LANES) - largest);
    /* In double precision, which libraries of all systems round to the same number. */
    float less = largest + (float)log(sum_lanes(sum));
    for (int64_t i = 0; i < n; i++) x[i] -= less;
  }
}

/* What a row is made of that drafts: the embedding of a token; the product (`join`) of it beside
 * the feature before it, plus the `bias` of its step; the two, normed, for an attention beside the
 * feature that layers add to; or the embedding, in layers of which one attends to features. The
 * feature after a row is what layers add to, and in the last case what is normed at the end. */
enum { EMBEDDING, PRODUCT, BOTH, ATTENDED };

/* What drafts tokens. */
typedef struct {
  const Stack *stack;
  const Matrix *join, *head;
  const float *table, *bias; /* [n_embeddings, width] by id; [steps, width]. */
  const int64_t *ids;        /* [n] the id of each output of the head; none if they are the ids. */
  const int64_t *never;      /* [n_never] outputs that are never drafted. */
  int64_t n, n_never, n_embeddings, steps, layers, reads;
} Drafting;

/* Nodes of a round's tree, fed to each sequence at once, and what is drafted after them. A round's
 * nodes are numbered in the order in which they are fed, from its root, 0: node v lies in row
 * base + v of the cache. Tokens before the root have negative numbers, and see all before them. */
typedef struct {
  int64_t base, rows; /* The new nodes are the next `rows` after those in the cache. */
  const int64_t *fed; /* [rows] their tokens. */
  int64_t *parents;   /* [nodes]: of all nodes that were and will be fed; -1 for the root. */
  const int64_t *position, *padding; /* [sequences] the root's position; rows before the first one. */
  const float *weights;  /* [sequences] by which their probabilities are mixed; none for one. */
  const float *features; /* [.., width] those before the root and what is fed before it. */
  float *made;           /* [nodes, width] the feature after each node; not of EMBEDDING. */
  float *log_probs;      /* [nodes, sequences, head.n] after each node. */
  int64_t *tokens;       /* [drafted, k] the likeliest after each new node that is no token before */
  float *logp;           /* the root, best first, and their log-probabilities. */
  int64_t k;
} Level;

/* Levels below the root; of tokens before it, below 0. */
static int64_t depth_of(const Level *l, int64_t node) {
  int64_t depth = node < 0 ? node : 0;
  for (; node > 0; node = l->parents[node]) depth++;
  return depth;
}

/* Write what the new nodes from `first` on see, as an additive mask [sequences, rows, at + rows]; 0
 * if they see all before them. */
static int fill_mask(const Level *l, const Step *s, int64_t first, float *mask) {
  int64_t columns = s->at + s->rows, line = 1, padded = 0;
  for (int64_t node = 1; node < first + s->rows; node++) line &= l->parents[node] == node - 1;
  for (int64_t i = 0; i < s->sequences; i++) padded |= l->padding[i];
  if (line && !padded) return 0;
  for (int64_t i = 0; i < s->sequences; i++)
    for (int64_t r = 0; r < s->rows; r++, mask += columns) {
      int64_t node = first + r, decided = l->base + (node < 0 ? node : 0);
      for (int64_t c = 0; c < columns; c++)
        mask[c] = c < l->padding[i] || c >= decided ? -3.40282347e38f : 0;
      for (; node > 0; node = l->parents[node]) mask[l->base + node] = 0;
      mask[l->base + node] = 0;
    }
  return 1;
}

/* The k highest of x [n], best first, the first of equal ones. */
static void find_best(const float *x, int64_t n, int64_t k, int64_t *at, float *best) {
  for (int64_t j = 0; j < k; j++) at[j] = 0, best[j] = -INFINITY;
  for (int64_t i = 0; i < n; i += 64) {
    /* 64 numbers of which none is among the best so far are passed over at once. */
    if (i + 64 <= n) {
      Floats size = load(x + i);
      for (int64_t j = LANES; j < 64; j += LANES) size = larger(size, load(x + i + j));
      if (largest_lane(size) <= best[k - 1]) continue;
    }
    for (int64_t c = i; c < fewer(i + 64, n); c++) {
      if (!(x[c] > best[k - 1])) continue;
      int64_t j = k - 1;
      for (; j > 0 && x[c] > best[j - 1]; j--) at[j] = at[j - 1], best[j] = best[j - 1];
      at[j] = c, best[j] = x[c];
    }
  }
}

/* Turn a node's logits [sequences, head.n] into log-probabilities, and find the likeliest tokens.
 * `mixed` [head.n] is for the mixture. */
static void choose_tokens(const Drafting *d, const Level *l, int64_t sequences, float *rows,
                          float *mixed, int64_t *tokens, float *logp) {
  int64_t whole = d->head->n;
  for (int64_t i = 0; i < sequences; i++)
    log_softmax(rows + i * whole, 1, d->n, d->never, d->n_never);
  for (int64_t j = 0; l->weights && j < whole; j += LANES) {
    Floats sum = all(0);
    for (int64_t i = 0; i < sequences; i++)
      sum = fused(all(l->weights[i]), exponential(load(rows + i * whole + j)), sum);
    store(mixed + j, sum);
  }
  find_best(l->weights ? mixed : rows, d->n, l->k, tokens, logp);
  for (int64_t j = 0; j < l->k; j++) {
    if (d->ids) tokens[j] = d->ids[tokens[j]];
    if (l->weights) logp[j] = (float)log(logp[j]);
  }
}

/* Feed a level's nodes, then up to levels - 1 tokens one by one, each the likeliest after the node
 * before it, until the probability of all of them falls below e to the power of `floor`.
 *
 * Returns after how many nodes tokens were drafted; 0 without memory, -1 if a position has no
 * rotation, -2 if a token has no embedding. */
int draft_levels(const Drafting *d, const Step *whole, const Level *l, int64_t levels, double floor,
                 int threads) {
  const Stack *m = d->stack;
  Step step = *whole;
  int64_t width = m->width, size = width * sizeof(float), many = step.sequences, most = l->rows;
  int64_t first = step.at - l->base, drafted = 0, columns = d->head->n;
  int normed = m->norm || m->leave;
  float *memory = malloc(most * many * (6 * size + 8) + columns * most * sizeof(float) +
                         many * most * (step.at + most + levels) * sizeof(float));
  if (!memory) return 0;
  /* 1. Memory: positions, x, out, both, before, last, mixed, mask. */
  int64_t *positions = (int64_t *)memory;
  float *x = memory + 2 * many * most, *out = x + most * many * width;
  float *both = out + most * many * width, *before = both + 2 * most * many * width;
  float *last = before + most * many * width, *mixed = last + most * many * width;
  float *mask = mixed + columns * most;
  double sum = 0;
  step.x = x, step.hidden = normed ? out : NULL, step.features = before;
  step.positions = positions;
  if (d->reads != EMBEDDING) step.input = d->reads == BOTH ? both : x;
  for (int64_t level = 0; level < levels; level++) {
    int64_t count = level ? 1 : l->rows, scored = fewer(count, first + count);
    step.rows = step.position_sequence = count;
    /* 2. Below the given nodes, the likeliest token after the node before. */
    if (level) l->parents[first] = first - 1;
    for (int64_t r = 0; r < count; r++) {
      int64_t node = first + r, depth = depth_of(l, node);
      int64_t token = level ? l->tokens[(drafted - 1) * l->k] : l->fed[r];
      if (token < 0 || token >= d->n_embeddings) {
        free(memory);
        return -2;
      }
      /* 3. What rows are made of: the token's embedding, and the feature after its parent. */
      const float *row = d->table + token * width;
      for (int64_t i = 0; i < many; i++) {
        positions[i * count + r] = l->position[i] + depth;
        memcpy(x + (i * count + r) * width, row, size);
      }
      if (d->reads == EMBEDDING) continue;
      float *at = both + r * 2 * width;
      const float *feature =
          node > 0 ? l->made + l->parents[node] * width : l->features + r * width;
      memcpy(before + r * width, feature, size);
      if (d->reads == BOTH) {
        Norm norm = {NULL, m->root, at};
        norm_row(&norm, row, width);
        norm.normed += width;
        norm_row(&norm, feature, width);
        memcpy(x + r * width, feature, size);
      } else if (d->reads == PRODUCT) {
        memcpy(at, row, size);
        memcpy(at + width, feature, size);
      }
    }
    if (d->reads == PRODUCT) {
      if (!multiply(d->join, both, count, x, width, threads)) break;
      for (int64_t r = 0; r < count; r++) {
        int64_t depth = more(depth_of(l, first + r), 0);
        const float *bias = d->bias + fewer(depth, d->steps - 1) * width;
        for (int64_t i = 0; i < width; i++) x[r * width + i] += bias[i];
      }
    }
    /* 4. Layers. */
    step.mask = fill_mask(l, &step, first, mask) ? mask : NULL;
    step.mask_row = step.at + count, step.mask_sequence = count * step.mask_row;
    int done = run_layers(m, &step, 0, d->layers, threads);
    if (done != 1) {
      drafted = done ? -1 : 0;
      break;
    }
    /* 5. Tokens before the root are not scored; the others leave their feature. */
    int64_t node = first + count - scored; /* The first that is scored. */
    for (int64_t r = 0; r < scored; r++)
      for (int64_t i = 0; i < many; i++) {
        int64_t row = i * count + count - scored + r;
        memcpy(last + (r * many + i) * width, (normed ? out : x) + row * width, size);
        if (d->reads != EMBEDDING)
          memcpy(l->made + (node + r) * width, (d->reads == ATTENDED ? out : x) + row * width,
                 size);
      }
    /* 6. What is likeliest after each of them. */
    float *rows = l->log_probs + node * many * columns, *logp = l->logp + drafted * l->k;
    int64_t *tokens = l->tokens + drafted * l->k;
    if (!multiply(d->head, last, scored * many, rows, columns, threads)) break;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && scored > 1)
    for (int64_t r = 0; r < scored; r++)
      choose_tokens(d, l, many, rows + r * many * columns, mixed + r * columns, tokens + r * l->k,
                    logp + r * l->k);
    /* 7. On, as long as the chain is likely enough. */
    drafted += scored, first += count, step.at += count;
    sum += l->logp[(drafted - 1) * l->k];
    if (sum < floor) break;
  }
  free(memory);
  return drafted;
}

/* What TABED's search for weights learns from the positions of a round (arXiv 2601.20357, B.2). */
typedef struct {
  const float *log_probs; /* Of the views: `view` and `position` are how far each is from the next. */
  const float *logits;    /* The target's, [positions, n], rows apart by `row`. */
  const float *grid;      /* [vectors, views] the weights that are tried. */
  float *sums; /* [2, vectors] so far: at how many positions a mixture's likeliest token was the
                  target's, and its error. */
  int64_t view, position, row, views, positions, n, vectors, likely, rivals;
} History;

/* Add these positions to the sums, and return the vector with most matches; ties go to the least
 * error, then, up to rounding, to the first vector. -1 without memory.
 *
 * The error is the sum of -p log q over the target's `likely` likeliest tokens: its own entropy is
 * the same for all vectors. Only a view's `rivals` likeliest tokens can outrank the target's. */
int weigh_mixtures(const History *h) {
  int64_t most = h->likely + h->views * h->rivals, columns = (most + 15) / 16 * 16;
  float *memory = malloc((2 * most + h->n + (h->views + 2) * columns) * sizeof(float));
  if (!memory) return -1;
  int64_t *ids = (int64_t *)memory; /* The target's likeliest tokens, then those of each view. */
  float *row = memory + 2 * most, *p = row + h->n, *best = p + columns, *drafted = best + columns;
  float *matches = h->sums, *errors = h->sums + h->vectors;
  for (int64_t at = 0; at < h->positions; at++) {
    const float *views = h->log_probs + at * h->position;
    /* 1. The tokens that count, the target's own first. */
    memcpy(row, h->logits + at * h->row, h->n * sizeof(float));
    log_softmax(row, 1, h->n, NULL, 0);
    find_best(row, h->n, h->likely, ids, p);
    for (int64_t v = 0; v < h->views; v++)
      find_best(views + v * h->view, h->n, h->rivals, ids + h->likely + v * h->rivals, best);
    /* 2. Their probabilities; for the target rivals have none. */
    for (int64_t i = h->likely; i < columns; i++) p[i] = -INFINITY;
    for (int64_t v = 0; v < h->views; v++)
      for (int64_t i = 0; i < columns; i++)
        drafted[v * columns + i] = i < most ? views[v * h->view + ids[i]] : -INFINITY;
    for (int64_t i = 0; i < columns; i += LANES) store(p + i, exponential(load(p + i)));
    for (int64_t i = 0; i < h->views * columns; i += LANES)
      store(drafted + i, exponential(load(drafted + i)));
    /* 3. What each mixture q makes of them: a probability of 0 counts as the smallest float. */
    for (int64_t g = 0; g < h->vectors; g++) {
      Sixteen error = {{{0}}};
      Floats highest = all(0);
      float own = 0;
      for (int64_t i = 0; i < columns; i += LANES) {
        Floats q = all(0);
        for (int64_t v = 0; v < h->views; v++)
          q = fused(all(h->grid[g * h->views + v]), load(drafted + v * columns + i), q);
        if (i == 0) own = q[0];
        highest = larger(highest, q);
        error.part[i / LANES % PARTS] -= load(p + i) * logarithm(larger(q, all(1.17549435e-38f)));
      }
      /* The target's token may be a rival besides. */
      matches[g] += own >= largest_lane(highest) * (1 - 1e-6f);
      errors[g] += larger(all(sum_lanes(error)), all(0))[0]; /* Rounding can make it negative. */
    }
  }
  free(memory);
  /* 4. The best of them. */
  int chosen = 0, first = 0;
  for (int g = 1; g < h->vectors; g++) {
    float gain = matches[g] - matches[chosen];
    if (gain > 0 || (gain == 0 && errors[g] < errors[chosen])) chosen = g;
  }
  float bound = errors[chosen] * (1 + 1e-6f);
  while (first < chosen && (matches[first] < matches[chosen] || errors[first] > bound)) first++;
  return first;
}
