/* Instructions of AMX, and products of bytes, in plain C: `test_kernels.py` builds kernels.c with
 * them for processors that lack them. */
#include <stdlib.h>

static __thread struct {
  int rows[8], bytes[8];
  uint8_t at[8][16][64];
  int configured;
} tiles;

static void emulate_loadconfig(const void *from) {
  const uint8_t *config = from;
  if (config[0] != 1) abort();
  memset(&tiles, 0, sizeof tiles);
  for (int i = 0; i < 8; i++) {
    tiles.bytes[i] = config[16 + 2 * i] + 256 * config[17 + 2 * i];
    tiles.rows[i] = config[48 + i];
    if (!tiles.rows[i] || tiles.rows[i] > 16 || !tiles.bytes[i] || tiles.bytes[i] > 64) abort();
  }
  tiles.configured = 1;
}

static void emulate_release(void) { tiles.configured = 0; }

static void emulate_zero(int tile) {
  if (!tiles.configured) abort();
  memset(tiles.at[tile], 0, sizeof tiles.at[tile]);
}

static void emulate_load(int tile, const void *from, int64_t stride) {
  emulate_zero(tile);
  for (int r = 0; r < tiles.rows[tile]; r++)
    memcpy(tiles.at[tile][r], (const char *)from + r * stride, tiles.bytes[tile]);
}

static void emulate_store(int tile, void *to, int64_t stride) {
  if (!tiles.configured) abort();
  for (int r = 0; r < tiles.rows[tile]; r++)
    memcpy((char *)to + r * stride, tiles.at[tile][r], tiles.bytes[tile]);
}

/* sum [rows, outputs] += a [rows, inputs] b [inputs / 4, outputs, 4], of unsigned bytes in a. */
static void emulate_product(int sum, int a, int b, int unsigned_b) {
  if (!tiles.configured || tiles.rows[sum] != tiles.rows[a] || tiles.bytes[a] != 4 * tiles.rows[b])
    abort();
  for (int r = 0; r < tiles.rows[a]; r++)
    for (int o = 0; o < tiles.bytes[sum] / 4; o++) {
      uint32_t total;
      memcpy(&total, tiles.at[sum][r] + 4 * o, 4);
      for (int i = 0; i < tiles.bytes[a]; i++) {
        uint8_t byte = tiles.at[b][i / 4][4 * o + i % 4];
        total += tiles.at[a][r][i] * (unsigned_b ? byte : (int8_t)byte);
      }
      memcpy(tiles.at[sum][r] + 4 * o, &total, 4);
    }
}

/* sum [lanes] += row [lanes, 4] weights [lanes, 4], of unsigned bytes in the row. */
static void emulate_dot_bytes(void *sum, const void *row, const void *weights, int lanes) {
  const uint8_t *a = row;
  const int8_t *b = weights;
  for (int i = 0; i < 4 * lanes; i++) ((uint32_t *)sum)[i / 4] += a[i] * b[i];
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#undef _tile_dpbuud
#define _tile_loadconfig emulate_loadconfig
#define _tile_release emulate_release
#define _tile_zero emulate_zero
#define _tile_loadd emulate_load
#define _tile_stored emulate_store
#define _tile_dpbusd(sum, a, b) emulate_product(sum, a, b, 0)
#define _tile_dpbuud(sum, a, b) emulate_product(sum, a, b, 1)
