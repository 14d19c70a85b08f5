// The page of profiles, which is a file of its own.

import { drawProfiles } from "./profiles.js";

drawProfiles();
