/*
 * stdio.c - streams of stdio over taken sockets.
 *
 * libc's streams call the kernel without passing the shim. They do so through tables of functions,
 * two of which are for streams over descriptors, and which libc exports. The shim replaces three
 * words in each: read, write and close. So every stream comes here, whichever descriptor it is
 * given and whenever: stdin, stdout and stderr that are inherited or become a socket by dup2, and
 * what fdopen makes. docs/adr/0024 has what speaks against other ways.
 *
 * perror and freopen pass the tables by: they duplicate and replace descriptors inside libc.
 */
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <wchar.h>

/* Words of glibc's struct _IO_jump_t: two that are not used, then functions. */
enum { READ = 14, WRITE = 15, CLOSE = 17 };

typedef ssize_t read_function(FILE *, void *, ssize_t);
typedef ssize_t write_function(FILE *, const void *, ssize_t);
typedef int close_function(FILE *);

static struct {
  read_function *read;
  write_function *write;
  close_function *close;
} own;

static ssize_t stream_read(FILE *file, void *buffer, ssize_t length) {
  const int fd = file->_fileno;
  return taken(fd) ? taken_recv(fd, buffer, (size_t)length, 0) : own.read(file, buffer, length);
}

/* All of it, unless there is an error: stdio asks for no less. */
static size_t send_whole(int fd, const char *buffer, size_t length) {
  size_t sent = 0;
  while (sent < length) {
    const ssize_t result = taken_send(fd, buffer + sent, length - sent, 0);
    if (result < 0) break;
    sent += (size_t)result;
  }
  return sent;
}

static ssize_t stream_write(FILE *file, const void *buffer, ssize_t length) {
  const int fd = file->_fileno;
  if (!taken(fd)) return own.write(file, buffer, length);
  const size_t sent = send_whole(fd, buffer, (size_t)length);
  if (sent < (size_t)length) file->_flags |= _IO_ERR_SEEN;
  return (ssize_t)sent;
}

/* What the stream still had to write has been written. */
static int stream_close(FILE *file) {
  descriptor_closed(file->_fileno);
  return own.close(file);
}

/* Where a table is, and whether the dynamic linker has made it read-only. */
struct place {
  uintptr_t from, to;
  bool found, sealed;
};

static int find_place(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size;
  struct place *place = context;
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  bool found = false, sealed = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    uintptr_t from = info->dlpi_addr + segment->p_vaddr, to = from + segment->p_memsz;
    if (segment->p_type == PT_LOAD && (segment->p_flags & PF_W) != 0) {
      found |= from <= place->from && place->to <= to;
    } else if (segment->p_type == PT_GNU_RELRO) {
      /* The linker protects whole pages only. */
      from &= ~(page - 1), to &= ~(page - 1);
      sealed |= from < place->to && place->from < to;
    }
  }
  place->found = found;
  place->sealed = sealed;
  return found;
}

static uintptr_t address_of(const char *name) {
  return (uintptr_t)dlsym(RTLD_NEXT, name);
}

/* The words of a table that are replaced, if they are what this libc is known to have there. */
static uintptr_t *words_of(const char *table) {
  uintptr_t *words = (uintptr_t *)address_of(table);
  const bool known = words != NULL && words[READ] != 0 && words[READ] == address_of("_IO_file_read") &&
                     words[WRITE] == address_of("_IO_file_write") && words[CLOSE] == address_of("_IO_file_close");
  return known ? words : NULL;
}

static bool replace(uintptr_t *words) {
  struct place place = {.from = (uintptr_t)&words[READ], .to = (uintptr_t)&words[CLOSE + 1]};
  dl_iterate_phdr(find_place, &place);
  if (!place.found) return false;
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = place.from & ~(page - 1);
  const size_t length = ((place.to + page - 1) & ~(page - 1)) - from;
  if (place.sealed && mprotect((void *)from, length, PROT_READ | PROT_WRITE) != 0) return false;
  words[READ] = (uintptr_t)stream_read;
  words[WRITE] = (uintptr_t)stream_write;
  words[CLOSE] = (uintptr_t)stream_close;
  return !place.sealed || mprotect((void *)from, length, PROT_READ) == 0;
}

bool stdio_start(void) {
  uintptr_t *narrow = words_of("_IO_file_jumps"), *wide = words_of("_IO_wfile_jumps");
  if (narrow == NULL || wide == NULL) return false;
  own.read = (read_function *)narrow[READ];
  own.write = (write_function *)narrow[WRITE];
  own.close = (close_function *)narrow[CLOSE];
  return replace(narrow) && replace(wide);
}

/* libc duplicates a descriptor whose stream has no orientation yet, and nothing of which has been
 * written then. */
EXPORT void perror(const char *text) {
  const int error = errno;
  if (!taken(stderr->_fileno) || fwide(stderr, 0) != 0) return real.perror(text);
  char room[256];
  const bool named = text != NULL && *text != '\0';
  dprintf(stderr->_fileno, "%s%s%s\n", named ? text : "", named ? ": " : "", strerror_r(error, room, sizeof room));
}

/* libc puts another descriptor in its place. */
static void replaced(FILE *file) {
  if (!taken(file->_fileno)) return;
  const int saved = errno;
  fflush(file);
  descriptor_closed(file->_fileno);
  errno = saved;
}

EXPORT FILE *freopen(const char *path, const char *mode, FILE *file) {
  replaced(file);
  return real.freopen(path, mode, file);
}

EXPORT FILE *freopen64(const char *path, const char *mode, FILE *file) {
  replaced(file);
  return real.freopen64(path, mode, file);
}

static int print(int fd, const char *format, va_list arguments) {
  char *text;
  const int length = vasprintf(&text, format, arguments);
  if (length < 0) return length;
  const size_t sent = send_whole(fd, text, (size_t)length);
  free(text);
  return sent == (size_t)length ? length : -1;
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
