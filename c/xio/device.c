/* Devices, and what connections of a process share of them. */
#include "xio.h"

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device *devices;

/* The library's words about its last failure with this context. */
const char *last_error(haul_context *context, char text[TEXT_MAX]) {
  if (haul_last_error(context, text, TEXT_MAX) == 0) {
    snprintf(text, TEXT_MAX, "no reason given");
  }
  return text;
}

static struct device *device_open(const struct options *options, char wrong[TEXT_MAX]) {
  struct device *device = calloc(1, sizeof *device);
  if (device == NULL) {
    snprintf(wrong, TEXT_MAX, "no memory");
    return NULL;
  }
  haul_open_options how = HAUL_OPEN_OPTIONS_INIT;
  bool engine = options->engine_cpus[0] != '\0';
  how.flags = (options->crc ? 0 : HAUL_OPEN_NO_CRC) | (engine ? HAUL_OPEN_ENGINE : 0);
  how.engine_cpus = engine ? options->engine_cpus : NULL;
  how.rate_bps = options->rate_bps;
  how.protect = options->protect[0] != '\0' ? options->protect : NULL;
  device->info = (haul_device_info)HAUL_DEVICE_INFO_INIT;
  device->users = 1;
  device->rate_bps = options->rate_bps;
  device->crc = options->crc;
  strcpy(device->name, options->device);
  strcpy(device->protect, options->protect);
  strcpy(device->engine_cpus, options->engine_cpus);
  if (haul_open(options->device, &how, &device->context) == HAUL_OK) {
    if (haul_query(device->context, &device->info) == HAUL_OK && haul_pd_create(device->context, &device->pd) == HAUL_OK) {
      if ((device->info.caps & HAUL_CAP_RC) != 0) {
        return device;
      }
      snprintf(wrong, TEXT_MAX, "device %s has no reliable connections", device->info.name);
    } else {
      last_error(device->context, wrong);
    }
    haul_pd_destroy(device->pd);
    haul_close(device->context);
  } else {
    last_error(NULL, wrong);
  }
  free(device);
  return NULL;
}

/* The device that the options name, opened already or now; NULL and what is wrong. */
struct device *device_take(const struct options *options, char wrong[TEXT_MAX]) {
  pthread_mutex_lock(&devices_lock);
  struct device *device = devices;
  while (device != NULL && (strcmp(device->name, options->device) != 0 || device->rate_bps != options->rate_bps ||
                            device->crc != options->crc || strcmp(device->protect, options->protect) != 0 ||
                            strcmp(device->engine_cpus, options->engine_cpus) != 0)) {
    device = device->next;
  }
  if (device != NULL) {
    device->users++;
  } else if ((device = device_open(options, wrong)) != NULL) {
    device->next = devices;
    devices = device;
  }
  pthread_mutex_unlock(&devices_lock);
  return device;
}

struct device *device_share(struct device *device) {
  pthread_mutex_lock(&devices_lock);
  device->users++;
  pthread_mutex_unlock(&devices_lock);
  return device;
}

void device_leave(struct device *device) {
  pthread_mutex_lock(&devices_lock);
  bool last = --device->users == 0;
  for (struct device **at = &devices; last && *at != NULL; at = &(*at)->next) {
    if (*at == device) {
      *at = device->next;
      break;
    }
  }
  pthread_mutex_unlock(&devices_lock);
  if (last) {
    haul_pd_destroy(device->pd);
    haul_close(device->context);
    free(device);
  }
}
