// A report, which is a file of its own.

import { drawReport } from "./report.js";

drawReport();
