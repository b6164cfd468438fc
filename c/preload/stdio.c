/*
 * stdio.c - streams of stdio over taken sockets.
 *
 * libc's streams call the kernel without passing the shim. So fdopen of a socket that is a taken stream gives a stream whose
 * functions are the shim's. fileno and fclose know these streams; everything else of stdio works on them by itself.
 */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* Streams over taken sockets at the same time; more are refused. */
#define STREAMS_MAX 256

static struct stream {
  _Atomic(FILE *) file;
  atomic_int fd;
} streams[STREAMS_MAX];

static struct stream *stream_of(FILE *file) {
  for (size_t i = 0; file != NULL && i < STREAMS_MAX; i++) {
    if (atomic_load_explicit(&streams[i].file, memory_order_acquire) == file) return &streams[i];
  }
  return NULL;
}

static int descriptor_in(const void *cookie) {
  return (int)(intptr_t)cookie;
}

static ssize_t cookie_read(void *cookie, char *buffer, size_t length) {
  return taken_recv(descriptor_in(cookie), buffer, length, 0);
}

/* stdio takes less than everything for an error. */
static ssize_t cookie_write(void *cookie, const char *buffer, size_t length) {
  size_t sent = 0;
  while (sent < length) {
    const ssize_t result = taken_send(descriptor_in(cookie), buffer + sent, length - sent, 0);
    if (result <= 0) break;
    sent += (size_t)result;
  }
  return (ssize_t)sent;
}

static int cookie_close(void *cookie) {
  return close(descriptor_in(cookie));
}

/* Remembers which descriptor a stream is over. A slot is taken with a mark that no stream has. */
static bool remember(FILE *file, int fd) {
  static FILE *const reserved = (FILE *)1;
  for (size_t i = 0; i < STREAMS_MAX; i++) {
    FILE *none = NULL;
    if (!atomic_compare_exchange_strong(&streams[i].file, &none, reserved)) continue;
    atomic_store(&streams[i].fd, fd);
    atomic_store_explicit(&streams[i].file, file, memory_order_release);
    return true;
  }
  return false;
}

/* The access modes that fdopen checks: a socket has them all. */
EXPORT FILE *fdopen(int fd, const char *mode) {
  if (haul_socket_kind(fd) != HAUL_SOCKET_STREAM) return real.fdopen(fd, mode);
  const cookie_io_functions_t functions = {.read = cookie_read, .write = cookie_write, .close = cookie_close};
  FILE *file = fopencookie((void *)(intptr_t)fd, mode, functions);
  if (file == NULL || remember(file, fd)) return file;
  /* Closing it would close the descriptor. */
  errno = EMFILE;
  return NULL;
}

EXPORT int fileno(FILE *file) {
  const struct stream *stream = stream_of(file);
  return stream == NULL ? real.fileno(file) : atomic_load(&stream->fd);
}

EXPORT int fileno_unlocked(FILE *file) {
  return fileno(file);
}

/* An ordinary stream closes its descriptor inside libc. What it still writes goes first. */
EXPORT int fclose(FILE *file) {
  struct stream *stream = stream_of(file);
  if (stream != NULL) {
    atomic_store(&stream->file, NULL);
  } else if (file != NULL && shim_active()) {
    const int fd = real.fileno(file);
    const struct descriptor *descriptor = descriptor_find(fd);
    if (descriptor != NULL && atomic_load(&descriptor->socket) != 0) {
      fflush(file);
      descriptor_closed(fd);
    }
  }
  return real.fclose(file);
}

static int print(int fd, const char *format, va_list arguments) {
  char *text;
  const int length = vasprintf(&text, format, arguments);
  if (length < 0) return length;
  const ssize_t sent = cookie_write((void *)(intptr_t)fd, text, (size_t)length);
  free(text);
  return sent == length ? length : -1;
}

EXPORT int vdprintf(int fd, const char *format, va_list arguments) {
  return taken(fd) ? print(fd, format, arguments) : real.vdprintf(fd, format, arguments);
}

EXPORT int dprintf(int fd, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = vdprintf(fd, format, arguments);
  va_end(arguments);
  return result;
}

/* What _FORTIFY_SOURCE makes of them: `flag` has libc look at the format. */
int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments);
int __dprintf_chk(int fd, int flag, const char *format, ...);

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments) {
  return taken(fd) ? print(fd, format, arguments) : real.__vdprintf_chk(fd, flag, format, arguments);
}

EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = __vdprintf_chk(fd, flag, format, arguments);
  va_end(arguments);
  return result;
}
