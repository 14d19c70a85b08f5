// A profile's page: zoom into icicles, search modules and lines, choose a rank of a job; with the recording's blocks also
// what is allocated at any event, and what a range of events leaves behind.

import { explore } from "./explore.js";
import { icicle } from "./icicle.js";
import { chooseRank, searching } from "./search.js";

/** Make the page's profiles answer to the reader. */
export function drawProfiles() {
  const icicles = [...document.querySelectorAll("svg.icicle")].map(icicle);
  const search = searching(document.querySelector(".search"), icicles);
  const choice = document.querySelector(".choose-rank");
  if (choice) chooseRank(choice, search);
  const raw = document.getElementById("profile-data");
  if (raw) explore(JSON.parse(raw.textContent), icicles, search);
}
