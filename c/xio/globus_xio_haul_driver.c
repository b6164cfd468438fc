/* What Globus loads: the driver's name and its table of functions. xio.h says what it does. */
#include "xio.h"

#include <stdarg.h>

GlobusXIODeclareDriver(haul);
static int activate(void);
static int deactivate(void);
static globus_version_t version = {HAUL_XIO_VERSION, 0, 0, 0};
GlobusXIODefineModule(haul) = {"globus_xio_haul", activate, deactivate, NULL, NULL, &version, NULL};

globus_result_t failure(int type, const char *format, ...) {
  char text[2 * TEXT_MAX];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return globus_error_put(globus_error_construct_error(GlobusXIOMyModule(haul), NULL, type, __FILE__, "haul", __LINE__,
                                                       "%s", text));
}

globus_result_t no_memory(void) {
  return failure(GLOBUS_XIO_ERROR_MEMORY, "no memory");
}

static globus_result_t driver_init(globus_xio_driver_t *out) {
  globus_xio_driver_t driver;
  globus_result_t result = globus_xio_driver_init(&driver, "haul", NULL);
  if (result != GLOBUS_SUCCESS) {
    return result;
  }
  if (haul_abi_version() >> 16 != HAUL_ABI_VERSION >> 16 || haul_abi_version() < HAUL_ABI_VERSION) {
    globus_xio_driver_destroy(driver);
    return failure(GLOBUS_XIO_ERROR_DRIVER, "libhaul is of version %#x, the driver was made for %#x", haul_abi_version(),
                   HAUL_ABI_VERSION);
  }
  options_init();
  globus_xio_driver_set_transport(driver, driver_open, driver_close, driver_read, driver_write, driver_cntl);
  globus_xio_driver_set_server(driver, server_init, server_accept, server_destroy, server_cntl, link_cntl, link_destroy);
  globus_xio_driver_set_attr(driver, attr_init, attr_copy, attr_cntl, attr_destroy);
  globus_xio_driver_string_cntl_set_table(driver, string_options);
  *out = driver;
  return GLOBUS_SUCCESS;
}

static void driver_destroy(globus_xio_driver_t driver) {
  globus_xio_driver_destroy(driver);
}

GlobusXIODefineDriver(haul, driver_init, driver_destroy);

static int activate(void) {
  int result = globus_module_activate(GLOBUS_XIO_MODULE);
  if (result == GLOBUS_SUCCESS) {
    globus_begin();
    GlobusXIORegisterDriver(haul);
  }
  return result;
}

static int deactivate(void) {
  GlobusXIOUnRegisterDriver(haul);
  globus_end(now_ns() + EXIT_NS);
  return globus_module_deactivate(GLOBUS_XIO_MODULE);
}
