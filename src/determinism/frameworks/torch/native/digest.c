// 128-bit XXH3, compiled once per instruction set that a processor may have: DIGEST names the function.
#define XXH_INLINE_ALL
#include "xxhash.h"

void DIGEST(const void* data, size_t length, unsigned char* digest) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, length));
  for (int i = 0; i < 16; ++i) digest[i] = canonical.digest[i];
}
