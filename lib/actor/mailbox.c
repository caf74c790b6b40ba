/* SPDX-License-Identifier: Apache-2.0 */
#include "actor/actor.h"
