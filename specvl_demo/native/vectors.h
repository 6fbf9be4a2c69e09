/* Vectors of one register, the same for every kind of processor: `kernels.c` knows only LANES. What
 * has operators is left to the compiler; the rest rounds alike everywhere, and sums of a row's
 * numbers have 16 lanes whatever the width of a register. Compile it with -ffp-contract=off. */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* LANES: numbers of 32 bits in a register. SUMS: registers that hold sums, beside those for what is
 * summed. BYTES_AT_ONCE: integers of 8 bits that are multiplied and summed at once; BYTE_ZERO
 * stands for zero in those of rows. */
#if defined __AVX512BW__
#include <immintrin.h>
#define LANES 16
#define SUMS 28
#elif defined __AVX2__ && defined __FMA__ && defined __F16C__
#include <immintrin.h>
#define LANES 8
#define SUMS 12
#elif defined __ARM_NEON && defined __aarch64__
#include <arm_neon.h>
#define LANES 4
#define SUMS 24
#else
#error "These kernels need AVX2 with FMA and F16C, or 64-bit ARM."
#endif
#ifdef EMULATED
#include EMULATED /* In tests: matrix tiles and products of bytes in plain C. */
#endif
#if defined __AVX512VNNI__ || defined __AVXVNNI__ || defined EMULATED
#define BYTES_AT_ONCE 4
#define BYTE_ZERO 128
#elif defined __ARM_FEATURE_DOTPROD
#define BYTES_AT_ONCE 4
#define BYTE_ZERO 0
#else
#define BYTES_AT_ONCE 2 /* As integers of 16 bits. */
#define BYTE_ZERO 0
#endif
/* Whether there are matrix tiles (AMX), which multiply 16 rows of bytes by 16 outputs. */
#if defined __AMX_INT8__ || defined EMULATED
#define TILES 1
#else
#define TILES 0
#endif
#define PARTS (16 / LANES) /* Registers that hold the 16 lanes of a sum of a row's numbers. */
#define INLINE __attribute__((always_inline)) static inline
/* Sums must have names for the compiler to keep them in registers: such loops are written out. */
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef int16_t Narrow16 __attribute__((vector_size(2 * LANES)));
typedef int8_t Narrow8 __attribute__((vector_size(LANES)));
typedef float Four __attribute__((vector_size(16)));

INLINE Floats load(const void *p) {
  Floats x;
  memcpy(&x, p, sizeof x);
  return x;
}
INLINE void store(float *p, Floats x) { memcpy(p, &x, sizeof x); }
INLINE Floats all(float x) { return x - (Floats){0}; }
INLINE Floats choose(Ints mask, Floats a, Floats b) {
  return (Floats)((mask & (Ints)a) | (~mask & (Ints)b));
}
INLINE Floats larger(Floats a, Floats b) { return choose(a > b, a, b); }
INLINE Floats absolute(Floats x) { return (Floats)((Ints)x & 0x7fffffff); }

/* Keep the compiler from loading a number again for every use of it. */
INLINE Floats in_register(Floats x) {
#if LANES == 16
  __asm__("" : "+v"(x));
#endif
  return x;
}

/* fused: a * b + c, rounded once. from_half: numbers in half precision. from_bytes: integers of 8
 * bits as of 16, two in each lane. dot_pairs: sum + a[0] * b[0] + a[1] * b[1], of the two integers
 * of 16 bits in each lane. dot_bytes: the same of BYTES_AT_ONCE. */
#if LANES == 16
INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Floats from_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE Ints from_bytes(const void *p) { return (Ints)_mm512_cvtepi8_epi16(_mm256_loadu_si256(p)); }
#elif LANES == 8
INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Floats from_half(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
INLINE Ints from_bytes(const void *p) { return (Ints)_mm256_cvtepi8_epi16(_mm_loadu_si128(p)); }
#else
INLINE Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
INLINE Floats from_half(const void *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE Ints from_bytes(const void *p) { return (Ints)vmovl_s8(vld1_s8(p)); }
#endif

INLINE Ints dot_pairs(Ints sum, Ints a, Ints b) {
#if defined __AVX512VNNI__
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif LANES == 16
  return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined __AVXVNNI__
  return (Ints)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif LANES == 8
  return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b));
  return sum + (Ints)vpaddq_s32(low, vmull_high_s16((int16x8_t)a, (int16x8_t)b));
#endif
}

INLINE Ints dot_bytes(Ints sum, Ints row, Ints weights) {
#if defined EMULATED
  emulate_dot_bytes(&sum, &row, &weights, LANES);
  return sum;
#elif defined __AVX512VNNI__
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)row, (__m512i)weights);
#elif defined __AVXVNNI__
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)row, (__m256i)weights);
#elif defined __ARM_FEATURE_DOTPROD
  return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)row, (int8x16_t)weights);
#else
  return dot_pairs(sum, row, weights);
#endif
}

/* In every four lanes, those of these numbers: 0 to 3 of a, 4 to 7 of b. */
#define LANE(block, i) ((block) * 4 + (i) % 4 + (i) / 4 * LANES)
#define BLOCK(n, i, j, k, l) LANE(n, i), LANE(n, j), LANE(n, k), LANE(n, l)
#if LANES == 16
#define BLOCKS(...) \
  BLOCK(0, __VA_ARGS__), BLOCK(1, __VA_ARGS__), BLOCK(2, __VA_ARGS__), BLOCK(3, __VA_ARGS__)
#elif LANES == 8
#define BLOCKS(...) BLOCK(0, __VA_ARGS__), BLOCK(1, __VA_ARGS__)
#else
#define BLOCKS(...) BLOCK(0, __VA_ARGS__)
#endif
#ifdef __clang__
#define PERMUTE __builtin_shufflevector
#else
#define PERMUTE(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif
#define SHUFFLE(a, b, ...) PERMUTE(a, b, BLOCKS(__VA_ARGS__))
/* Four blocks of four lanes of these numbers: 0 to 3 of a, 4 to 7 of b. */
#define FOUR_OF(i) 4 * (i), 4 * (i) + 1, 4 * (i) + 2, 4 * (i) + 3
#define FOURS(a, b, i, j, k, l) PERMUTE(a, b, FOUR_OF(i), FOUR_OF(j), FOUR_OF(k), FOUR_OF(l))

/* The 16 lanes in which numbers of a row are summed. */
typedef union {
  Floats part[PARTS];
  Four four[4];
} Sixteen;

INLINE Four fold(Sixteen sum) { return (sum.four[0] + sum.four[2]) + (sum.four[1] + sum.four[3]); }

INLINE float sum_lanes(Sixteen sum) {
  Four four = fold(sum);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

/* Of the lanes of four sums, each added up in the same order: the sums of every four lanes. */
INLINE Sixteen blocks_each(const Sixteen sum[4]) {
  Sixteen each;
  EACH (p, PARTS) {
    Floats a = sum[0].part[p], b = sum[1].part[p], c = sum[2].part[p], d = sum[3].part[p];
    Floats ab = SHUFFLE(a, b, 0, 4, 1, 5) + SHUFFLE(a, b, 2, 6, 3, 7);
    Floats cd = SHUFFLE(c, d, 0, 4, 1, 5) + SHUFFLE(c, d, 2, 6, 3, 7);
    each.part[p] = SHUFFLE(ab, cd, 0, 1, 4, 5) + SHUFFLE(ab, cd, 2, 3, 6, 7);
  }
  return each;
}

/* `fold` of each. */
INLINE Sixteen fold_each(const Sixteen sum[4]) {
  Sixteen folded;
#if LANES == 16
  Floats a = sum[0].part[0], b = sum[1].part[0], c = sum[2].part[0], d = sum[3].part[0];
  Floats ab = FOURS(a, b, 0, 1, 4, 5) + FOURS(a, b, 2, 3, 6, 7);
  Floats cd = FOURS(c, d, 0, 1, 4, 5) + FOURS(c, d, 2, 3, 6, 7);
  folded.part[0] = FOURS(ab, cd, 0, 2, 4, 6) + FOURS(ab, cd, 1, 3, 5, 7);
#else
  for (int i = 0; i < 4; i++) folded.four[i] = fold(sum[i]);
#endif
  return folded;
}

INLINE float largest_lane(Floats x) {
  float lane[LANES];
  store(lane, x);
  for (int n = LANES / 2; n > 0; n /= 2)
    for (int i = 0; i < n; i++) lane[i] = lane[i] > lane[i + n] ? lane[i] : lane[i + n];
  return lane[0];
}

INLINE float sum_of_squares(const float *row, int64_t n) {
  Sixteen sum = {{{0}}};
  for (int64_t i = 0; i < n; i += 16)
    EACH (p, PARTS) {
      Floats x = load(row + i + p * LANES);
      sum.part[p] = fused(x, x, sum.part[p]);
    }
  return sum_lanes(sum);
}

#define ROUNDER 12582912.0f /* 1.5 * 2^23, whose last bit is worth 1. */

/* The nearest integers, even ones in the middle, for numbers of at most 2^22. */
INLINE Ints nearest(Floats x) { return (Ints)(x + ROUNDER) - (Ints)all(ROUNDER); }

/* e to the power of x <= 0, to about one unit in the last place; 0 below -87. */
INLINE Floats exponential(Floats x) {
  Ints small = x < -87.0f;
  Floats shifted = x * 1.44269504f + ROUNDER, n = shifted - ROUNDER;
  x = fused(n, all(-0.693359375f), x);
  x = fused(n, all(2.12194440e-4f), x);
  Floats y = all(1.9875691500e-4f);
  y = fused(y, x, all(1.3981999507e-3f));
  y = fused(y, x, all(8.3334519073e-3f));
  y = fused(y, x, all(4.1665795894e-2f));
  y = fused(y, x, all(1.6666665459e-1f));
  y = fused(y, x, all(5.0000001201e-1f));
  y = fused(y, x * x, x) + 1.0f;
  Ints power = ((Ints)shifted - (Ints)all(ROUNDER) + 127) << 23; /* 2^n as a float. */
  return (Floats)(~small & (Ints)(y * (Floats)power));
}

/* The logarithm of normal numbers above 0, to about one unit in the last place. */
INLINE Floats logarithm(Floats x) {
  const int32_t root = 0x3f3504f3; /* sqrt(1/2), from which on x is m 2^n with an m of 1 or more. */
  Ints power = ((Ints)x - root) >> 23;
  Floats n = __builtin_convertvector(power, Floats);
  x = (Floats)((Ints)x - (power << 23)) - 1.0f;
  Floats y = all(7.0376836292e-2f), square = x * x;
  y = fused(y, x, all(-1.1514610310e-1f));
  y = fused(y, x, all(1.1676998740e-1f));
  y = fused(y, x, all(-1.2420140846e-1f));
  y = fused(y, x, all(1.4249322787e-1f));
  y = fused(y, x, all(-1.6668057665e-1f));
  y = fused(y, x, all(2.0000714765e-1f));
  y = fused(y, x, all(-2.4999993993e-1f));
  y = fused(y, x, all(3.3333331174e-1f));
  y = fused(n, all(-2.12194440e-4f), y * x * square);
  y = fused(square, all(-0.5f), y) + x;
  return fused(n, all(0.693359375f), y);
}
