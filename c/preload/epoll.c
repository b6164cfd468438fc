/*
 * epoll.c - readiness of taken sockets for epoll(7).
 *
 * The kernel keeps reporting what happens to its sockets. Added to that is what it cannot know:
 * bytes that wait in user space. Level-triggered descriptors are reported as long as they hold
 * some. Edge-triggered and one-shot ones are reported once, when they are added or changed while
 * they hold some ("owed"): a receive drains the kernel's socket into the caller's buffer, so
 * whoever reads until EAGAIN finds everything, and the next arrival is the next edge.
 *
 * A thread that already waits in the kernel is woken by the bell: an event descriptor, always
 * readable, that is put into the instance for one event.
 */
#include "shim.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* What the bell's events carry: no address, and no descriptor. */
#define BELL UINT64_C(0xbe118e11be118e11)
/* How many held descriptors one call reports. */
#define HELD_MAX 64
/* Registrations with these are reported once. */
#define ONCE ((uint32_t)EPOLLET | (uint32_t)EPOLLONESHOT)

static atomic_int bell = -1;

/* A descriptor whose bytes wait in user space, as its registration wants it reported. */
struct held {
  int fd;
  struct registration *registration;
  struct epoll_event event;
};

static int bell_descriptor(void) {
  int fd = atomic_load(&bell);
  if (fd >= 0) return fd;
  const int made = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made < 0) return -1;
  int none = -1;
  if (atomic_compare_exchange_strong(&bell, &none, made)) return made;
  real.close(made);
  return none;
}

static void ring(int epoll) {
  const int saved = errno;
  const int fd = bell_descriptor();
  struct epoll_event event = {.events = EPOLLIN | (uint32_t)EPOLLONESHOT, .data.u64 = BELL};
  if (fd >= 0 && real.epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) != 0 && errno == ENOENT)
    real.epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  errno = saved;
}

void epoll_closing(int fd) {
  if (fd >= 0 && fd == atomic_load_explicit(&bell, memory_order_relaxed)) atomic_store(&bell, -1);
}

static uint32_t instance_of(int epoll) {
  const struct descriptor *descriptor = descriptor_find(epoll);
  return descriptor == NULL ? 0 : atomic_load_explicit(&descriptor->instance, memory_order_relaxed);
}

static struct registration *registration_in(struct descriptor *descriptor, uint32_t instance) {
  for (int i = 0; i < REGISTRATIONS_MAX; i++) {
    struct registration *registration = &descriptor->registrations[i];
    if (atomic_load_explicit(&registration->instance, memory_order_acquire) == instance) return registration;
  }
  return NULL;
}

void epoll_notice_held(int fd) {
  struct descriptor *descriptor = descriptor_find(fd);
  if (descriptor == NULL) return;
  for (int i = 0; i < REGISTRATIONS_MAX; i++) {
    struct registration *registration = &descriptor->registrations[i];
    const uint32_t instance = atomic_load(&registration->instance);
    if (instance == 0 || (atomic_load(&registration->events) & (EPOLLIN | ONCE)) != EPOLLIN) continue;
    const int epoll = atomic_load(&registration->epoll);
    const struct descriptor *watcher = descriptor_find(epoll);
    if (watcher != NULL && atomic_load(&watcher->instance) == instance && atomic_load(&watcher->waiters) > 0) ring(epoll);
  }
}

/* What is due of one descriptor in an instance. */
static bool is_due(int fd, uint32_t instance, struct held *held) {
  struct descriptor *descriptor = descriptor_find(fd);
  struct registration *registration = descriptor == NULL ? NULL : registration_in(descriptor, instance);
  if (registration == NULL) return false;
  const uint32_t events = atomic_load(&registration->events);
  if ((events & EPOLLIN) == 0 || ((events & ONCE) != 0 && !atomic_load(&registration->owed))) return false;
  held->fd = fd;
  held->registration = registration;
  held->event.events = EPOLLIN | (events & EPOLLRDNORM);
  held->event.data.u64 = atomic_load(&registration->data);
  return haul_socket_pending(fd) > 0;
}

static int collect_held(uint32_t instance, struct held *held, int most) {
  int count = 0;
  if (!holding_any()) return 0;
  for (int fd = holding_next(0); fd >= 0 && count < most; fd = holding_next(fd + 1)) {
    if (is_due(fd, instance, &held[count])) count++;
  }
  return count;
}

bool epoll_holds(int fd) {
  struct held held;
  const uint32_t instance = holding_any() ? instance_of(fd) : 0;
  return instance != 0 && collect_held(instance, &held, 1) > 0;
}

/* Takes what is owed; false where another thread was faster. */
static bool claim(const struct held *held) {
  const uint32_t events = atomic_load(&held->registration->events);
  return (events & ONCE) == 0 || atomic_exchange(&held->registration->owed, false);
}

/* Puts what is held among what the kernel reported: one event a descriptor, as there. */
static int merge(struct epoll_event *events, int count, int most, const struct held *held, int held_count) {
  for (int i = 0; i < held_count; i++) {
    int at = 0;
    while (at < count && events[at].data.u64 != held[i].event.data.u64) at++;
    if (at == most || !claim(&held[i])) continue;
    if (at < count) {
      events[at].events |= held[i].event.events;
    } else {
      events[count++] = held[i].event;
    }
  }
  return count;
}

/* Takes the bell's events out; returns whether there was one. */
static bool mute(struct epoll_event *events, int *count) {
  int kept = 0;
  for (int i = 0; i < *count; i++) {
    if (events[i].data.u64 != BELL) events[kept++] = events[i];
  }
  const bool rang = kept < *count;
  *count = kept;
  return rang;
}

static int wait_in_kernel(int epoll, struct epoll_event *events, int most, const struct timespec *timeout,
                          const sigset_t *mask) {
  if (real.epoll_pwait2 != NULL) {
    const int result = real.epoll_pwait2(epoll, events, most, timeout, mask);
    if (result >= 0 || errno != ENOSYS) return result;
  }
  int limit = -1;
  if (timeout != NULL) {
    const int64_t wait = (int64_t)timeout->tv_sec * 1000 + (timeout->tv_nsec + 999999) / 1000000;
    limit = wait > INT32_MAX ? INT32_MAX : (int)wait;
  }
  return real.epoll_pwait(epoll, events, most, limit, mask);
}

/* Room for held events is taken from the kernel's, whose own come again; with room for one they
 * take turns. */
static int report_held(int epoll, struct descriptor *watcher, struct epoll_event *events, int most, const sigset_t *mask,
                       const struct held *held, int held_count) {
  static const struct timespec at_once = {0};
  int room = most > held_count ? most - held_count : most / 2;
  if (room == 0) room = atomic_fetch_add(&watcher->turn, 1) % 2;
  int result = 0;
  if (room > 0) {
    result = wait_in_kernel(epoll, events, room, &at_once, mask);
    if (result < 0 && errno != EINTR) return result;
    if (result < 0) result = 0;
    mute(events, &result);
  }
  return merge(events, result, most, held, held_count);
}

static int wait_ours(int epoll, struct descriptor *watcher, uint32_t instance, struct epoll_event *events, int most,
                     const struct timespec *timeout, const sigset_t *mask) {
  const struct deadline deadline = deadline_in(timeout);
  struct timespec left;
  struct held held[HELD_MAX];
  for (;;) {
    /* A waiter announces itself before it looks, so that whoever makes bytes held after the look
     * rings. */
    atomic_fetch_add(&watcher->waiters, 1);
    const int held_count = collect_held(instance, held, most < HELD_MAX ? most : HELD_MAX);
    if (held_count > 0) {
      atomic_fetch_sub(&watcher->waiters, 1);
      const int result = report_held(epoll, watcher, events, most, mask, held, held_count);
      if (result != 0) return result;
    } else {
      int result = wait_in_kernel(epoll, events, most, timeout, mask);
      const int saved = errno;
      atomic_fetch_sub(&watcher->waiters, 1);
      errno = saved;
      if (result < 0 || !mute(events, &result) || result > 0) return result;
    }
    if (timeout == NULL) continue;
    left = deadline.never ? *timeout : deadline_left(&deadline);
    timeout = &left;
  }
}

/* Instances that watch no socket of the interface are the kernel's alone. */
static struct descriptor *watcher_of(int epoll, int most, uint32_t *instance) {
  if (most <= 0 || !shim_active()) return NULL;
  *instance = instance_of(epoll);
  return *instance == 0 ? NULL : descriptor_find(epoll);
}

EXPORT int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
  uint32_t instance;
  struct descriptor *watcher = watcher_of(epoll, most, &instance);
  if (watcher == NULL) return real.epoll_wait(epoll, events, most, timeout);
  const struct timespec limit = milliseconds(timeout);
  return wait_ours(epoll, watcher, instance, events, most, timeout < 0 ? NULL : &limit, NULL);
}

EXPORT int epoll_pwait(int epoll, struct epoll_event *events, int most, int timeout, const sigset_t *mask) {
  uint32_t instance;
  struct descriptor *watcher = watcher_of(epoll, most, &instance);
  if (watcher == NULL) return real.epoll_pwait(epoll, events, most, timeout, mask);
  const struct timespec limit = milliseconds(timeout);
  return wait_ours(epoll, watcher, instance, events, most, timeout < 0 ? NULL : &limit, mask);
}

EXPORT int epoll_pwait2(int epoll, struct epoll_event *events, int most, const struct timespec *timeout,
                        const sigset_t *mask) {
  uint32_t instance;
  struct descriptor *watcher = watcher_of(epoll, most, &instance);
  if (watcher == NULL) return real.epoll_pwait2(epoll, events, most, timeout, mask);
  return wait_ours(epoll, watcher, instance, events, most, timeout, mask);
}

static int created(int epoll) {
  if (epoll < 0 || !shim_active() || shim_borrowed()) return epoll;
  struct descriptor *descriptor = descriptor_make(epoll);
  if (descriptor == NULL) return epoll;
  descriptor_opened(epoll);
  atomic_store(&descriptor->socket, 0);
  atomic_store(&descriptor->waiters, 0);
  atomic_store(&descriptor->instance, descriptor_next_id());
  return epoll;
}

EXPORT int epoll_create(int size) {
  return created(real.epoll_create(size));
}

EXPORT int epoll_create1(int flags) {
  return created(real.epoll_create1(flags));
}

/* Notes what the kernel has accepted. */
static void note(int epoll, uint32_t instance, struct descriptor *descriptor, int operation,
                 const struct epoll_event *event) {
  struct registration *registration = registration_in(descriptor, instance);
  if (operation == EPOLL_CTL_DEL) {
    if (registration != NULL) atomic_store(&registration->instance, 0);
    return;
  }
  if (registration == NULL) registration = registration_in(descriptor, 0);
  if (registration == NULL) return;
  atomic_store(&registration->epoll, epoll);
  atomic_store(&registration->events, event->events);
  atomic_store(&registration->data, event->data.u64);
  atomic_store(&registration->owed, false);
  atomic_store_explicit(&registration->instance, instance, memory_order_release);
}

/* Bytes that wait already are reported as if they had just come. The kernel has a one-shot
 * registration sleep meanwhile, so that two threads do not get the same socket. */
static void owe(int epoll, uint32_t instance, int fd, struct descriptor *descriptor, const struct epoll_event *event) {
  struct registration *registration = registration_in(descriptor, instance);
  if (registration == NULL || (event->events & EPOLLIN) == 0 || haul_socket_pending(fd) <= 0) return;
  /* Another process may have left them. */
  holding_update(fd);
  if ((event->events & (uint32_t)EPOLLONESHOT) != 0) {
    struct epoll_event asleep = {.events = (uint32_t)EPOLLONESHOT, .data = event->data};
    const int saved = errno;
    real.epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &asleep);
    errno = saved;
  }
  atomic_store(&registration->owed, (event->events & ONCE) != 0);
  ring(epoll);
}

EXPORT int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
  const int result = real.epoll_ctl(epoll, operation, fd, event);
  if (result != 0 || !shim_active()) return result;
  const uint32_t instance = instance_of(epoll);
  struct descriptor *descriptor = instance == 0 ? NULL : descriptor_known(fd);
  if (descriptor == NULL || shim_borrowed()) return result;
  note(epoll, instance, descriptor, operation, event);
  if (operation != EPOLL_CTL_DEL) owe(epoll, instance, fd, descriptor, event);
  return result;
}
