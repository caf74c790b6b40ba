/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/transport.h"
