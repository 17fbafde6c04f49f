// The parts of Apache ECharts that reports use; esbuild leaves the rest out.
import { use } from 'echarts/core';
import { CustomChart, HeatmapChart, LineChart, ScatterChart } from 'echarts/charts';
import { GridComponent, TooltipComponent } from 'echarts/components';
import { SVGRenderer } from 'echarts/renderers';

use([CustomChart, HeatmapChart, LineChart, ScatterChart, GridComponent, TooltipComponent, SVGRenderer]);

export { init } from 'echarts/core';
