/*
 * Before a client of Globus that has threads: OpenSSL stays as it is at exit.
 *
 * globus-url-copy with threads calls exit while one of them still closes a control connection.
 * OpenSSL's function of atexit then frees what that thread frees, and the client crashes after a
 * complete transfer: with the driver and without it.
 */
#include <stdint.h>

/* Of openssl/crypto.h, whose package nothing else needs. */
#define OPENSSL_INIT_NO_ATEXIT 0x00080000
int OPENSSL_init_crypto(uint64_t options, const void *settings);

__attribute__((constructor)) static void keep_openssl(void) {
  (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, 0);
}
