/* descriptors.c - what the shim knows about descriptors, by number. */
#include "shim.h"

#include <errno.h>
#include <sys/mman.h>

/* Descriptors are kept in chunks that are mapped when the first of them is needed, and never go
 * away. */
#define CHUNK 1024
#define WORD 64
/* Up to which number the interface is notified of descriptors that the shim does not know. */
#define PROBED 65536

static _Atomic(struct descriptor *) chunks[DESCRIPTORS_MAX / CHUNK];
static atomic_uint last_id;
/* One more than the highest chunk in use. */
static atomic_int chunks_used;

/* A bit for each descriptor that holds bytes in user space, how many are set, and where the last
 * may be. */
static _Atomic uint64_t holding[DESCRIPTORS_MAX / WORD];
static atomic_int holding_count;
static atomic_int holding_words;

static void raise_to(atomic_int *limit, int value) {
  int seen = atomic_load_explicit(limit, memory_order_relaxed);
  while (seen < value && !atomic_compare_exchange_weak(limit, &seen, value)) continue;
}

struct descriptor *descriptor_find(int fd) {
  if (fd < 0 || fd >= DESCRIPTORS_MAX) return NULL;
  struct descriptor *chunk = atomic_load_explicit(&chunks[fd / CHUNK], memory_order_acquire);
  return chunk == NULL ? NULL : &chunk[fd % CHUNK];
}

struct descriptor *descriptor_make(int fd) {
  if (fd < 0 || fd >= DESCRIPTORS_MAX) return NULL;
  struct descriptor *found = descriptor_find(fd);
  if (found != NULL) return found;
  const int saved = errno;
  const size_t size = CHUNK * sizeof(struct descriptor);
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    errno = saved;
    return NULL;
  }
  struct descriptor *none = NULL;
  if (!atomic_compare_exchange_strong(&chunks[fd / CHUNK], &none, memory)) munmap(memory, size);
  raise_to(&chunks_used, fd / CHUNK + 1);
  errno = saved;
  return descriptor_find(fd);
}

uint32_t descriptor_next_id(void) {
  uint32_t id = atomic_fetch_add(&last_id, 1) + 1;
  return id != 0 ? id : descriptor_next_id();
}

static void hold(int fd, bool holds) {
  _Atomic uint64_t *word = &holding[fd / WORD];
  const uint64_t bit = UINT64_C(1) << (fd % WORD);
  if (holds) {
    raise_to(&holding_words, fd / WORD + 1);
    if ((atomic_fetch_or(word, bit) & bit) == 0) atomic_fetch_add(&holding_count, 1);
  } else if ((atomic_fetch_and(word, ~bit) & bit) != 0) {
    atomic_fetch_sub(&holding_count, 1);
  }
}

static bool is_held(int fd) {
  return (atomic_load_explicit(&holding[fd / WORD], memory_order_relaxed) >> (fd % WORD) & 1) != 0;
}

/* What there is to forget when a number gets a new meaning. */
static void forget(int fd, struct descriptor *descriptor) {
  atomic_store(&descriptor->socket, 0);
  atomic_store(&descriptor->duplicated, false);
  atomic_store(&descriptor->instance, 0);
  for (int i = 0; i < REGISTRATIONS_MAX; i++) atomic_store(&descriptor->registrations[i].instance, 0);
  hold(fd, false);
}

void descriptor_opened(int fd) {
  struct descriptor *descriptor = descriptor_make(fd);
  if (descriptor == NULL) return;
  forget(fd, descriptor);
  atomic_store(&descriptor->socket, descriptor_next_id());
}

struct descriptor *descriptor_known(int fd) {
  struct descriptor *descriptor = descriptor_find(fd);
  if (descriptor != NULL && atomic_load_explicit(&descriptor->socket, memory_order_relaxed) != 0) return descriptor;
  if (!taken(fd)) return NULL;
  /* The interface took it up: the process was started with it. */
  descriptor_opened(fd);
  return descriptor_find(fd);
}

void descriptor_duplicated(int from, int to) {
  if (shim_borrowed()) {
    /* For the program that is started in the child of a vfork. */
    haul_socket_shared(from);
    return;
  }
  struct descriptor *source = descriptor_known(from);
  const struct descriptor *watcher = descriptor_find(from);
  const uint32_t instance = watcher == NULL ? 0 : atomic_load(&watcher->instance);
  struct descriptor *target = source != NULL || instance != 0 ? descriptor_make(to) : descriptor_find(to);
  if (target != NULL) {
    forget(to, target);
    atomic_store(&target->instance, instance);
  }
  haul_socket_duplicated(from, to);
  if (source == NULL || target == NULL) return;
  atomic_store(&target->socket, atomic_load(&source->socket));
  atomic_store(&source->duplicated, true);
  atomic_store(&target->duplicated, true);
  holding_update(to);
}

static void close_one(int fd) {
  struct descriptor *descriptor = descriptor_find(fd);
  epoll_closing(fd);
  if (descriptor != NULL) forget(fd, descriptor);
  haul_socket_closed(fd);
}

void descriptor_closed(int fd) {
  if (shim_active() && !shim_borrowed()) close_one(fd);
}

void descriptor_range_closed(unsigned first, unsigned last) {
  if (!shim_active() || shim_borrowed()) return;
  const unsigned end = (unsigned)atomic_load(&chunks_used) * CHUNK;
  /* The interface may have descriptors of its own that no chunk is about. */
  const unsigned limit = end > PROBED ? end : PROBED;
  for (unsigned fd = first; fd <= last && fd < limit; fd++) close_one((int)fd);
}

bool descriptor_is_stale(int fd, int error) {
  if (error != ENOTSOCK) return false;
  struct descriptor *descriptor = descriptor_find(fd);
  if (descriptor != NULL) forget(fd, descriptor);
  haul_socket_closed(fd);
  return !taken(fd);
}

bool holding_any(void) {
  return atomic_load(&holding_count) > 0;
}

int holding_next(int from) {
  const int words = atomic_load(&holding_words);
  for (int i = from / WORD; i < words; i++) {
    uint64_t word = atomic_load(&holding[i]);
    if (i == from / WORD) word &= ~UINT64_C(0) << (from % WORD);
    if (word != 0) return i * WORD + __builtin_ctzll(word);
  }
  return -1;
}

static void update_one(int fd) {
  const bool holds = haul_socket_pending(fd) > 0;
  if (holds) {
    hold(fd, true);
    epoll_notice_held(fd);
  } else if (is_held(fd)) {
    hold(fd, false);
  }
}

/* Duplicates share what is held, and are rare. */
void holding_update(int fd) {
  struct descriptor *descriptor = descriptor_known(fd);
  if (descriptor == NULL) return;
  update_one(fd);
  if (!atomic_load_explicit(&descriptor->duplicated, memory_order_relaxed)) return;
  const uint32_t socket = atomic_load(&descriptor->socket);
  const int end = atomic_load(&chunks_used) * CHUNK;
  for (int other = 0; other < end; other++) {
    struct descriptor *same = descriptor_find(other);
    if (other != fd && same != NULL && atomic_load(&same->socket) == socket) update_one(other);
  }
}
