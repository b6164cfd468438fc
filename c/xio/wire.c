/* What the two drivers tell each other: hellos, and headers of messages. */
#include "xio.h"

void put(unsigned char *at, uint64_t value, int bytes) {
  for (int i = bytes; i-- > 0; value >>= 8) {
    at[i] = (unsigned char)value;
  }
}

uint64_t take(const unsigned char *at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; i++) {
    value = value << 8 | at[i];
  }
  return value;
}

void hello_write(unsigned char at[HELLO_LEN], const struct hello *hello) {
  put(at, HELLO_MAGIC, 4);
  put(at + 4, hello->version, 2);
  put(at + 6, hello->status, 2);
  put(at + 8, hello->slab, 4);
  put(at + 12, hello->slabs, 2);
  put(at + 14, hello->mode, 2);
  put(at + 16, hello->rkey, 4);
  put(at + 20, 0, 4);
  put(at + 24, hello->addr, 8);
}

const char *hello_read(const unsigned char *at, size_t len, bool stream, struct hello *hello, char wrong[TEXT_MAX]) {
  if (len < HELLO_LEN || take(at, 4) != HELLO_MAGIC) {
    snprintf(wrong, TEXT_MAX, "the peer speaks %s, but it is no haul driver", stream ? "UDT" : "verbs");
    return wrong;
  }
  *hello = (struct hello){.version = (uint16_t)take(at + 4, 2),
                          .status = (uint16_t)take(at + 6, 2),
                          .slab = (uint32_t)take(at + 8, 4),
                          .slabs = (uint16_t)take(at + 12, 2),
                          .mode = (uint16_t)take(at + 14, 2),
                          .rkey = (uint32_t)take(at + 16, 4),
                          .addr = take(at + 24, 8)};
  if (hello->version != HAUL_XIO_VERSION) {
    snprintf(wrong, TEXT_MAX, "the peer's driver speaks version %u, this one version %u: install the same on both hosts",
             hello->version, HAUL_XIO_VERSION);
    return wrong;
  }
  if (hello->status == HELLO_GOOD && hello->slab >= SLAB_MIN && hello->slab <= SLAB_MAX && hello->slabs >= SLABS_MIN &&
      hello->slabs <= SLABS_MAX && hello->mode <= MODE_STREAM && (hello->mode == MODE_STREAM) == stream) {
    return NULL;
  }
  snprintf(wrong, TEXT_MAX, "the peer's driver offers %u slabs of %u bytes in mode %u, which cannot be", hello->slabs,
           hello->slab, hello->mode);
  return wrong;
}

void header_write(unsigned char at[HEADER_LEN], const struct header *header) {
  put(at, header->kind, 2);
  put(at + 2, header->slab, 2);
  put(at + 4, header->length, 4);
  put(at + 8, header->offset, 8);
  put(at + 16, header->seen, 4);
  put(at + 20, 0, 4);
}

struct header header_read(const unsigned char at[HEADER_LEN]) {
  return (struct header){.kind = (uint16_t)take(at, 2),
                         .slab = (uint16_t)take(at + 2, 2),
                         .length = (uint32_t)take(at + 4, 4),
                         .offset = take(at + 8, 8),
                         .seen = (uint32_t)take(at + 16, 4)};
}
