// The parts of Apache ECharts that reports use; esbuild leaves the rest out.
import { use } from 'echarts/core';
import { CustomChart, ScatterChart } from 'echarts/charts';
import { GridComponent, TooltipComponent } from 'echarts/components';
import { SVGRenderer } from 'echarts/renderers';

use([CustomChart, ScatterChart, GridComponent, TooltipComponent, SVGRenderer]);

export { init } from 'echarts/core';
