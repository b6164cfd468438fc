/*
 * A process that ends with a connection open: leave STACK open|callback|deactivate
 *
 * open: 17 bytes go from one process to another, which ends as soon as it has them; the first sees
 * the end of the stream, and ends. Neither closes. callback: the second ends while one of its
 * callbacks runs. What was there before the driver must not be taken away until it has returned: so
 * OpenSSL does at the end, and callbacks of GSI use it. deactivate: the same, when Globus is
 * deactivated before the end.
 */
#include <globus_xio.h>

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_S 180
#define OCTETS 17
#define CALLBACK_US 200000

static sem_t begun;
static atomic_bool in_callback;
static globus_byte_t octets[OCTETS];

static void must(globus_result_t result, const char *what) {
  if (result != GLOBUS_SUCCESS) {
    char *words = globus_error_print_friendly(globus_error_peek(result));
    fprintf(stderr, "%s: %s\n", what, words);
    _Exit(1);
  }
}

/* An attribute and a stack of a driver, which may have options. */
static globus_xio_stack_t stack_of(const char *text, globus_xio_attr_t *attr) {
  char name[256];
  globus_xio_driver_t driver;
  globus_xio_stack_t stack;
  snprintf(name, sizeof name, "%s", text);
  char *options = strchr(name, ':');
  if (options != NULL) {
    *options++ = '\0';
  }
  must(globus_xio_driver_load(name, &driver), "driver");
  must(globus_xio_stack_init(&stack, NULL), "stack");
  must(globus_xio_stack_push_driver(stack, driver), "stack");
  must(globus_xio_attr_init(attr), "attribute");
  if (options != NULL) {
    must(globus_xio_attr_cntl(*attr, driver, GLOBUS_XIO_SET_STRING_OPTIONS, options), "options");
  }
  return stack;
}

static void tell(int other, const char *what, size_t len) {
  if (write(other, what, len) != (ssize_t)len) {
    _Exit(1);
  }
}

static void hear(int other, char *what, size_t len) {
  if (read(other, what, len) <= 0) {
    _Exit(1);
  }
}

/* Sends when the other process reads, and waits for the end of the stream. */
static void send_octets(const char *text, int receiver) {
  char contact[64], reads;
  globus_xio_attr_t attr;
  globus_xio_handle_t handle;
  globus_size_t count;
  must(globus_xio_handle_create(&handle, stack_of(text, &attr)), "handle");
  hear(receiver, contact, sizeof contact);
  must(globus_xio_open(handle, contact, attr), "open");
  hear(receiver, &reads, 1);
  must(globus_xio_write(handle, octets, OCTETS, OCTETS, &count, NULL), "write");
  globus_result_t result = globus_xio_read(handle, octets, 1, 1, &count, NULL);
  if (!globus_xio_error_is_eof(result)) {
    must(result, "the end of the stream");
  }
}

static void read_done(globus_xio_handle_t handle, globus_result_t result, globus_byte_t *buffer, globus_size_t len,
                      globus_size_t count, globus_xio_data_descriptor_t data, void *unused) {
  (void)handle, (void)buffer, (void)len, (void)count, (void)data, (void)unused;
  must(result, "read");
  atomic_store(&in_callback, true);
  sem_post(&begun);
  usleep(CALLBACK_US);
  atomic_store(&in_callback, false);
}

static void clean_up(void) {
  if (atomic_load(&in_callback)) {
    fprintf(stderr, "the process ends below a callback\n");
    _Exit(1);
  }
}

/* Tells the other process where it listens, and receives. Where no bytes wait for it, a read is
 * finished by the driver's thread. */
static void receive_octets(const char *text, int sender, bool in_a_callback) {
  globus_xio_attr_t attr;
  globus_xio_server_t server;
  globus_xio_handle_t handle;
  globus_size_t count;
  char *contact, local[64] = "";
  globus_xio_stack_t stack = stack_of(text, &attr);
  must(globus_xio_server_create(&server, attr, stack), "listen");
  must(globus_xio_server_get_contact_string(server, &contact), "contact");
  snprintf(local, sizeof local, "127.0.0.1%s", strrchr(contact, ':'));
  tell(sender, local, sizeof local);
  must(globus_xio_server_accept(&handle, server), "accept");
  must(globus_xio_open(handle, NULL, NULL), "open what was accepted");
  if (in_a_callback) {
    must(globus_xio_register_read(handle, octets, OCTETS, OCTETS, NULL, read_done, NULL), "read");
    tell(sender, "", 1);
    sem_wait(&begun);
  } else {
    tell(sender, "", 1);
    must(globus_xio_read(handle, octets, OCTETS, OCTETS, &count, NULL), "read");
  }
}

int main(int argc, char **argv) {
  int ends[2];
  if (argc != 3 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || sem_init(&begun, 0, 0) != 0) {
    fprintf(stderr, "usage: leave STACK open|callback|deactivate\n");
    return 2;
  }
  pid_t sender = fork();
  alarm(PATIENCE_S);
  atexit(clean_up);
  if (globus_module_activate(GLOBUS_XIO_MODULE) != GLOBUS_SUCCESS) {
    return 1;
  }
  if (sender != 0) {
    receive_octets(argv[1], ends[1], strcmp(argv[2], "open") != 0);
  } else {
    send_octets(argv[1], ends[0]);
  }
  if (strcmp(argv[2], "deactivate") == 0) {
    globus_module_deactivate_all();
    clean_up();
  }
  /* As it is: nothing is closed. */
  return 0;
}
